"""What a card reads besides the records that every report reads: each is held to its form, or named in one line."""

from pathlib import Path
from typing import Annotated, TypeVar

import yaml
from huggingface_hub import metadata_load
from pydantic import ConfigDict, Field, JsonValue

from leonardo.errors import InputError
from leonardo.evaluation import EvaluationRecord, read_record
from leonardo.evaluation.records import Record
from leonardo.files import flat

_SAMPLING = ("temperature", "top_p", "max_turn_tokens", "context_tokens")
"""Pins of an evaluation that a card puts into its examples of use."""

_MOST = 2**31
"""Of such a number."""

Count = Annotated[int, Field(ge=0)]


class Left(Record):
    """What a training left; only the parts that a card tells are looked at."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False, strict=True)


class Training(Left):
    """A training's ``config.json`` (:mod:`leonardo.engine.desk.rundescription`); every part may be missing."""

    learner: dict[str, JsonValue] = Field(default_factory=dict)
    base: str = ""
    policy: str = ""
    tasks: tuple[str, ...] = ()
    task_digests: tuple[str, ...] = ()


class WarmStartSettings(Left):
    """Of the supervised training, see :class:`leonardo.engine.desk.config.WarmStartConfig`."""

    steps: Count
    right: Annotated[float, Field(ge=0, le=1)]


class WarmStart(Left):
    """The policy's ``warm-start.json``: its settings, and how many demonstrations were whole and of one turn."""

    config: WarmStartSettings
    demonstrations: tuple[Count, Count]


class Spread(Left):
    """A cell's effect over a study's seeds, in the ledger's entry: trained minus base of each, mean and deviation."""

    differences: Annotated[list[float], Field(min_length=2)]
    mean: float
    spread: float


AnyLeft = TypeVar("AnyLeft", bound=Left)


def read_left(path: Path, kind: type[AnyLeft]) -> AnyLeft | None:
    """What a training left in ``path``; None where there is no such file. Raises InputError where it is none."""
    return read_record(path, kind) if path.is_file() else None


def read_evaluation(path: Path) -> EvaluationRecord:
    """An evaluation that a card can tell of: of some tasks, sampled by numbers. Raises InputError."""
    record = read_record(path, EvaluationRecord)
    hint = "Delete it and evaluate again"
    if not record.tasks:
        raise InputError(f"{path} has no tasks", hint)
    for name, value in flat(record.pins).items():
        if name.rpartition(".")[2] in _SAMPLING and not (type(value) in (int, float) and 0 <= value < _MOST):
            raise InputError(f"{path}: the pin {name} is no number from 0", hint)
    return record


def licenses_of(card: Path) -> tuple[str, ...]:
    """The licenses that a model's own card names in its header; none where it is not there, or names none."""
    try:
        said = (metadata_load(card) or {}).get("license") if card.is_file() else None
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return ()
    named = said if isinstance(said, list) else [said]
    return tuple(each.strip() for each in named if isinstance(each, str) and each.strip())
