"""The files of an evaluation: records of one model, the comparison of two, and what a run says of itself."""

from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator, model_validator

from leonardo.errors import InputError
from leonardo.files import write_json

Reward = Annotated[int, Field(ge=0, le=1)] | None
"""The verifier's 0 or 1; ``None`` where the infrastructure failed."""

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Pins = Annotated[dict[str, JsonValue], Field(min_length=1)]
"""What a figure was measured under; without any, nothing could be told to be comparable."""

Ends = tuple[float, float] | None
"""Low and high end of a 95 % interval of a difference; ``None`` where there is none."""

RateEnds = tuple[Share, Share] | None
"""The same of a rate."""


class Record(BaseModel):
    """A record that is one JSON file, whole or absent."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    def write(self, path: Path) -> None:
        """Write the record atomically."""
        write_json(path, self.model_dump(mode="json"))


class TaskResult(Record):
    """The attempts at one task; ``attempts[i]`` was sampled with ``seeds[i]``."""

    task_id: str
    family: str
    attempts: list[Reward]
    seeds: list[int]

    @model_validator(mode="after")
    def _one_seed_an_attempt(self) -> Self:
        if len(self.attempts) != len(self.seeds):
            raise ValueError(f"{self.task_id}: {len(self.attempts)} attempts but {len(self.seeds)} seeds")
        return self


class Part(Record):
    """Which tasks of an evaluation a record has, where it is one of several.

    Attributes:
        number, count: the part, from 1, and how many there are.
        positions: where each of the record's tasks stands in the whole, from 0; ``total`` tasks in all.
        whole: the pins that are the whole's and not the part's: its tasks and their prepared states.
    """

    number: int = Field(ge=1)
    count: int = Field(ge=1)
    positions: list[int]
    total: int = Field(ge=1)
    whole: dict[str, JsonValue]


class EvaluationRecord(Record):
    """One model on pinned tasks.

    Attributes:
        model: the model's folder or name; free to differ between two compared records, as is ``weights``.
        weights: digest of the weights, ``""`` if not known.
        pins: everything that must be the same for two records to be comparable.
        tasks: results in the order of evaluation.
        pass_rate: mean over tasks; ``None`` where every attempt was an infrastructure failure.
        pass_rate_ci: its 95 % interval, tasks resampled.
        infrastructure_failures: attempts left out of all rates.
        failures_by_class: failures of any kind by class, agents' own included.
        seconds: wall-clock time of the evaluation.
        trajectories: name of the file beside the record that holds the trajectories, ``""`` if none were kept.
        part: where it is a part of an evaluation; :func:`leonardo.evaluation.parts.join` makes the whole of all parts.
    """

    model: str
    weights: str = ""
    pins: Pins
    tasks: list[TaskResult]
    pass_rate: Share | None
    pass_rate_ci: RateEnds
    infrastructure_failures: Count
    failures_by_class: dict[str, Count] = {}
    seconds: Annotated[float, Field(ge=0)]
    trajectories: str = ""
    part: Part | None = None

    @field_validator("tasks")
    @classmethod
    def _each_once(cls, tasks: list[TaskResult]) -> list[TaskResult]:
        """A task that is there twice would count twice, and make every interval too narrow."""
        for task_id, count in Counter(task.task_id for task in tasks).items():
            if count > 1:
                raise ValueError(f"task {task_id} is there {count} times")
        return tasks


class RateRecord(Record):
    """A pass rate, see :class:`leonardo.evaluation.statistics.Rate`."""

    value: Share | None
    interval: RateEnds
    tasks: Count
    attempts: Count
    excluded: Count


class DifferenceRecord(Record):
    """Trained minus base, see :class:`leonardo.evaluation.statistics.Difference`; ``excluded`` are task ids.

    ``p_value`` is of the exchange of base and trained task by task, ``mcnemar_p`` of McNemar's exact test on the tasks
    that got better and worse (:mod:`leonardo.evaluation.significance`); ``None`` without a pair, and in older records.
    """

    value: float | None
    interval: Ends
    pairs: int
    better: int
    worse: int
    excluded: list[str]
    p_value: float | None = None
    mcnemar_p: float | None = None


class FamilyComparison(Record):
    """Base and trained on the tasks of one family."""

    family: str
    base: RateRecord
    trained: RateRecord
    difference: DifferenceRecord


class Comparison(Record):
    """Base and trained on the same tasks under the same pins.

    Both rates are over the paired tasks, so that trained - base is the difference; a record's own ``pass_rate`` is over
    all its valid tasks. ``excluded`` attempts are counted over all tasks.
    """

    base_model: str
    trained_model: str
    pins: Pins
    base: RateRecord
    trained: RateRecord
    difference: DifferenceRecord
    families: list[FamilyComparison]


class Substitution(Record):
    """A base image that another stood for."""

    asked: str
    used: str
    reason: str = ""


class CriterionRecord(Record):
    """What came of a criterion of the stage; ``value`` is ``None`` where the figure was not measured."""

    figure: str
    value: JsonValue
    threshold: str
    ok: bool


class RunFacts(Record):
    """What a run says of itself (``run.json`` in its folder); every part may be missing.

    Attributes:
        name, stage, site: which run, of which stage, where.
        driver: name of the sandbox driver, ``degraded`` why its sandboxes are less than full (``""`` if they are not).
        fallback: the driver is not the one that the site prefers.
        substitutions: base images that were stood for by others.
        assets: figures of the asset manifest (prepared states, bytes, failed set-ups, ...), name -> value.
        pins: what the run was pinned to.
        configuration: settings, possibly nested.
        limits: sentences on what this kind of run cannot show, for the report's first screen.
        says: a stage's verdict in a sentence; ``criteria``: each with figure, value, threshold, ok.
        stains: what was forced in this run or in one that it builds on, a sentence each.
        machine: what it ran on.
        base: folder of the policy that it started from.
        seconds: wall-clock time of the whole run.
    """

    name: str = ""
    stage: str = ""
    site: str = ""
    driver: str = ""
    degraded: str = ""
    fallback: bool = False
    substitutions: list[Substitution] = []
    assets: dict[str, JsonValue] = {}
    pins: dict[str, JsonValue] = {}
    configuration: dict[str, JsonValue] = {}
    limits: list[str] = []
    says: str = ""
    criteria: list[CriterionRecord] = []
    stains: list[str] = []
    machine: dict[str, JsonValue] = {}
    base: str = ""
    seconds: float | None = None


AnyRecord = TypeVar("AnyRecord", bound=Record)


def read_record(path: Path, kind: type[AnyRecord]) -> AnyRecord:
    """Read a record of ``kind``.

    Raises:
        InputError: if the file is absent or not such a record; names the first thing that is wrong.
    """
    try:
        return kind.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file", "Run the evaluation that writes it") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", "Make it readable, or remove it") from error
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"{path}: not a valid {kind.__name__}: {where + ': ' if where else ''}{first['msg']}",
            "Delete it and run the step that writes it again",
        ) from None
