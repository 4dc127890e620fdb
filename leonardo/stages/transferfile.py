"""The file of the stage ``transfer``: the question and the rule, which were there before the run, and the sizes."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from leonardo.engine.desk.config import LearnerConfig
from leonardo.gates.criteria import Criterion
from leonardo.gates.direction import DirectionRule
from leonardo.settings import Settings, find_settings, read_settings
from leonardo.stages.definition import Stage, load_model

Kind = Literal["terminal", "functions"]
KINDS: tuple[Kind, ...] = ("terminal", "functions")


class Functions(Settings):
    """Sizes of the desk's function-calling corpus.

    Attributes:
        train, held_out: rows; the splits share functions and no request.
        demonstrations: train rows of which the warm start sees a demonstration, ``right`` of them right ones.
    """

    train: int = Field(default=200, ge=1)
    held_out: int = Field(default=60, ge=1)
    demonstrations: int = Field(default=2600, ge=1)
    right: float = Field(default=0.4, ge=0, le=1)


class Control(Settings):
    """The control: which kind of task, and what differs in the learner's settings."""

    kind: Kind
    desk: dict[str, Any]


class Transfer(Stage):
    """The stage's file.

    Attributes:
        question: that was asked before any run.
        rule: what an interval is called.
        models: of ``launch/models``; the first is the control's.
        functions: sizes.
        gate: what a training has to show.
        control: see the class.
    """

    question: str
    rule: DirectionRule
    models: tuple[str, ...] = Field(min_length=1)
    functions: Functions = Functions()
    gate: tuple[Criterion, ...]
    control: Control


def load_transfer(name: str | Path) -> Transfer:
    """Read the stage. Raises InputError that names file and setting."""
    stage = read_settings(find_settings(name, "studies"), Transfer)
    for model in stage.models:
        changed = stage.with_model(load_model(model))
        for part in (changed.corpus_sizes, changed.warm_start_config):
            part()
        for changes in ({}, stage.control.desk):
            learner_of(changed, changes)
    return stage


def learner_of(stage: Stage, changes: dict[str, Any]) -> LearnerConfig:
    """The learner's settings with some of them changed."""
    return stage.model_copy(update={"desk": stage.desk | changes}).learner()
