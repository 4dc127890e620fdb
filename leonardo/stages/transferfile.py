"""The file of the stage ``transfer``: the question and the rule, which were there before the run, and the sizes."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from pydantic import Field

from leonardo.engine.desk.config import LearnerConfig
from leonardo.errors import InputError
from leonardo.gates.criteria import Criterion
from leonardo.gates.direction import DirectionRule
from leonardo.rollout.families import Listing
from leonardo.settings import Settings, find_settings, read_settings
from leonardo.stages.definition import Model, Stage, load_model

Kind = Literal["terminal", "functions"]
KINDS: tuple[Kind, ...] = ("terminal", "functions")


class Functions(Settings):
    """The function-calling corpus.

    Attributes:
        source: ``desk`` for generated rows, whose splits share functions and no request; ``bfcl`` for the package's
            own, of ``categories``, whose splits share neither.
        categories: of the package's rows.
        prompt_tokens: what a row may take of the package's, with its functions, for every model with a tokenizer of its
            own. Its reference answer has to fit a turn.
        train, held_out: rows; of the package's at most so many, dealt out evenly over the categories.
        demonstrations: what the warm start sees of train rows, ``right`` of them right ones.
    """

    source: Literal["desk", "bfcl"] = "desk"
    categories: tuple[str, ...] = ()
    prompt_tokens: int = Field(default=512, ge=1)
    train: int = Field(default=200, ge=1)
    held_out: int = Field(default=60, ge=1)
    demonstrations: int = Field(default=2600, ge=1)
    right: float = Field(default=0.4, ge=0, le=1)


class Control(Settings):
    """The control: which kind of task, and what differs in that training's settings."""

    kind: Kind
    desk: dict[str, Any]


class Transfer(Stage):
    """The stage's file.

    Attributes:
        question: that was asked before any run.
        rule: what an interval is called.
        models: of ``launch/models``; the first is the control's.
        functions: the function-calling corpus.
        warm_start_here: settings of the warm start that this study has over the models' own.
        listing: how the models' chat templates show tools; ``brief`` gives no types and no descriptions.
        trainings: for each kind, the learner's settings that differ from ``desk``.
        gate: what a training has to show.
        control: see the class.
    """

    question: str
    rule: DirectionRule
    models: tuple[str, ...] = Field(min_length=1)
    functions: Functions = Functions()
    warm_start_here: dict[str, Any] = Field(default_factory=dict)
    listing: Listing = "brief"
    trainings: dict[Kind, dict[str, Any]] = Field(default_factory=dict)
    gate: tuple[Criterion, ...]
    control: Control

    def with_model(self, model: Model) -> Stage:
        """See the class above; what the study says of warm starts comes last."""
        stage = super().with_model(model)
        return stage.model_copy(update={"warm_start": stage.warm_start | self.warm_start_here})


def load_transfer(name: str | Path) -> Transfer:
    """Read the stage. Raises InputError that names file and setting."""
    path = find_settings(name, "studies")
    stage = read_settings(path, Transfer)
    if stage.functions.source == "bfcl" and not stage.functions.categories:
        raise InputError(f"{path}: functions.categories names none of the package's", "Name one, such as simple_python")
    for model in stage.models:
        changed = stage.with_model(load_model(model))
        for part in (changed.corpus_sizes, changed.warm_start_config):
            part()
        for kind in KINDS:
            learner_of(stage, changed, kind)
        learner_of(stage, changed, stage.control.kind, stage.control.desk)
    return stage


def learner_of(
    stage: Transfer, of_model: Stage, kind: Kind, changes: Mapping[str, Any] = MappingProxyType({})
) -> LearnerConfig:
    """The learner's settings for a training on ``kind``; ``of_model`` is the stage with the model's own settings."""
    desk = of_model.desk | stage.trainings.get(kind, {}) | dict(changes)
    return of_model.model_copy(update={"desk": desk}).learner()
