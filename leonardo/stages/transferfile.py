"""The file of the stage ``transfer``: the question and the rule, which were there before the run, and the sizes."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from leonardo.engine.desk.config import LearnerConfig
from leonardo.errors import InputError
from leonardo.functions.tasks import CATEGORIES
from leonardo.gates.criteria import Criterion, require_figures
from leonardo.gates.direction import DirectionRule
from leonardo.gates.signal import signal_figures
from leonardo.options import SEEDS
from leonardo.rollout.families import Listing
from leonardo.settings import Settings, find_settings, read_settings, require_plain_name
from leonardo.stages.definition import Model, Stage, load_model

Kind = Literal["terminal", "functions"]
KINDS: tuple[Kind, ...] = ("terminal", "functions")
CONTROL = "control"


JUDGED = (
    "cells", "cells_missing", "terminal_signal", "functions_signal", "trained_learns", "control_learns", "seconds",
    "cells_run",
)  # fmt: skip
"""The figures that criteria may be about; :mod:`leonardo.stages.transfermatrix` counts them."""


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

    @field_validator("categories")
    @classmethod
    def _known(cls, categories: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := set(categories) - set(CATEGORIES):
            raise ValueError(f"no category {min(unknown)}; there are {', '.join(CATEGORIES)}")
        return categories


class Control(Settings):
    """The control: which kind of task, what differs in that training's settings, and how often it is trained.

    Each training has a seed of its own. Of several the mean gain is judged, by their spread: an interval over tasks
    knows nothing of how far a training drifts whose rewards say nothing.
    """

    kind: Kind
    desk: dict[str, Any]
    trainings: int = Field(default=1, ge=1)

    @property
    def starts(self) -> tuple[str, ...]:
        """What its checkpoints are called."""
        return tuple(CONTROL if number == 1 else f"{CONTROL}-{number}" for number in range(1, self.trainings + 1))


class Transfer(Stage):
    """The stage's file.

    Attributes:
        attempts: as of every stage; a study evaluates.
        question: that was asked before any run.
        rule: what an interval is called.
        models: of ``launch/models``; the first is the control's.
        seeds: of the runs; each governs a run of its own.
        functions: the function-calling corpus.
        warm_start_here: settings of the warm start that this study has over the models' own.
        listing: how the models' chat templates show tools; ``brief`` gives no types and no descriptions.
        trainings: for each kind, the learner's settings that differ from ``desk``.
        gate: what a training has to show.
        control: see the class.
    """

    examples: ClassVar[str] = "launch/studies"

    attempts: int = Field(ge=1)
    question: str
    rule: DirectionRule
    models: tuple[str, ...] = Field(min_length=1)
    seeds: tuple[Annotated[int, Field(strict=True, ge=0, lt=SEEDS)], ...] = Field(default=(1,), min_length=1)
    functions: Functions = Functions()
    warm_start_here: dict[str, Any] = Field(default_factory=dict)
    listing: Listing = "brief"
    trainings: dict[Kind, dict[str, Any]] = Field(default_factory=dict)
    gate: tuple[Criterion, ...]
    control: Control

    @field_validator("models", "seeds")
    @classmethod
    def _each_once(cls, given: tuple[Any, ...]) -> tuple[Any, ...]:
        if len(set(given)) < len(given):
            raise ValueError("one is named twice")
        return given

    @field_validator("gate")
    @classmethod
    def _of_a_training(cls, gate: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        return require_figures(gate, signal_figures(()))

    @field_validator("criteria")
    @classmethod
    def _of_the_matrix(cls, criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        return require_figures(criteria, JUDGED)

    def with_model(self, model: Model) -> Stage:
        """See the class above; what the study says of warm starts comes last."""
        stage = super().with_model(model)
        return stage.model_copy(update={"warm_start": stage.warm_start | self.warm_start_here})


def load_transfer(name: str | Path) -> Transfer:
    """Read the stage. Raises InputError that names file and setting."""
    path = find_settings(name, "studies")
    stage = read_settings(path, Transfer)
    require_plain_name(path, stage.name)
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


def limits_of(stage: Transfer) -> tuple[str, ...]:
    """What a run of the study does not show."""
    if stage.functions.source == "desk":
        about = (
            "Anything about the reference models, or about BFCL's own rows: these policies have half a million "
            "parameters, and their function-calling rows are generated, with BFCL's form and checkers."
        )
    else:
        about = (
            "Anything about the reference models, or a score on BFCL: of its rows there are those of "
            f"{', '.join(stage.functions.categories)} whose prompt has at most {stage.functions.prompt_tokens} tokens, "
            "and of these some were seen in the warm start, with answers right and mistaken."
        )
    luck = "How much of a difference is this training run's luck: there is one seed a cell."
    if len(stage.seeds) > 1:
        luck = f"How much of a difference is one training run's luck, but by a spread over {len(stage.seeds)} seeds."
    return (about, luck)


def learner_of(
    stage: Transfer, of_model: Stage, kind: Kind, changes: Mapping[str, Any] = MappingProxyType({})
) -> LearnerConfig:
    """The learner's settings for a training on ``kind``; ``of_model`` is the stage with the model's own settings."""
    desk = of_model.desk | stage.trainings.get(kind, {}) | dict(changes)
    config = of_model.model_copy(update={"desk": desk}).learner()
    if config.wanted_groups > config.groups * config.rounds:
        raise InputError(
            f"{stage.name}: a training on {kind} wants {config.wanted_groups} groups of {config.groups} "
            f"in {config.rounds} rounds",
            "Lower wanted_groups, or raise groups or rounds",
        )
    return config
