"""Compare two evaluations, base and trained, and refuse where they were not made under the same pins."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from leonardo.errors import InputError
from leonardo.evaluation.records import (
    Comparison,
    DifferenceRecord,
    EvaluationRecord,
    FamilyComparison,
    RateRecord,
    Reward,
    TaskResult,
)
from leonardo.evaluation.significance import mcnemar, swap_test
from leonardo.evaluation.statistics import paired_difference, pass_rate, task_mean
from leonardo.files import flat

ABSENT = "(absent)"


class Mismatch(NamedTuple):
    """A pin, a task or a task's seeds that two records do not share."""

    kind: Literal["pin", "task", "seeds"]
    name: str
    left: Any
    right: Any

    def __str__(self) -> str:
        what = f"the seeds of task {self.name}" if self.kind == "seeds" else f"{self.kind} {self.name}"
        return f"{what} differs, {self.left} against {self.right}"


def compare(base: EvaluationRecord, trained: EvaluationRecord, seed: int = 0) -> Comparison:
    """Trained against base over the same tasks; ``seed`` is the bootstrap's.

    Raises:
        InputError: if a pin, the tasks or the attempts' seeds differ; names it and both values.
    """
    for difference in differences(base, trained):
        raise InputError(
            f"base and trained cannot be compared: {difference}", "Evaluate both again under the same pins"
        )
    other = {result.task_id: result for result in trained.tasks}
    pairs = [(result, other[result.task_id]) for result in base.tasks]
    families = sorted({left.family for left, _ in pairs})
    return Comparison(
        base_model=base.model,
        trained_model=trained.model,
        pins=base.pins,
        **_sides(pairs, seed),
        families=[
            FamilyComparison(family=name, **_sides([pair for pair in pairs if pair[0].family == name], seed))
            for name in families
        ],
    )


def _sides(pairs: list[tuple[TaskResult, TaskResult]], seed: int) -> dict[str, Any]:
    """Both rates over the tasks that are valid on both sides, so that the difference of the rates is the difference."""
    base = [left.attempts for left, _ in pairs]
    trained = [right.attempts for _, right in pairs]
    difference = paired_difference(base, trained, seed)
    excluded = [pairs[position][0].task_id for position in difference.excluded]
    paired = [number for number in range(len(pairs)) if number not in difference.excluded]
    means = [[task_mean(side[number]) for number in paired] for side in (base, trained)]
    return {
        "base": _rate(base, difference.excluded, seed),
        "trained": _rate(trained, difference.excluded, seed),
        "difference": DifferenceRecord(
            **difference._replace(excluded=excluded)._asdict(),
            p_value=swap_test(*means, seed) if paired else None,
            mcnemar_p=mcnemar(difference.better, difference.worse) if paired else None,
        ),
    }


def _rate(attempts: list[list[Reward]], unpaired: Sequence[int], seed: int) -> RateRecord:
    rate = pass_rate([given for position, given in enumerate(attempts) if position not in unpaired], seed)
    failed = sum(reward is None for given in attempts for reward in given)
    return RateRecord(**rate._replace(excluded=failed)._asdict())


def differences(base: EvaluationRecord, trained: EvaluationRecord) -> Iterator[Mismatch]:
    """Everything that differs and must not."""
    left, right = flat(base.pins), flat(trained.pins)
    for name in sorted(left.keys() | right.keys()):
        if left.get(name, ABSENT) != right.get(name, ABSENT):
            yield Mismatch("pin", name, left.get(name, ABSENT), right.get(name, ABSENT))
    mine, other = ({result.task_id: result for result in record.tasks} for record in (base, trained))
    for task_id in sorted(mine.keys() ^ other.keys()):
        yield Mismatch("task", task_id, *("present" if task_id in side else "absent" for side in (mine, other)))
    for task_id in sorted(mine.keys() & other.keys()):
        if mine[task_id].seeds != other[task_id].seeds:
            yield Mismatch("seeds", task_id, mine[task_id].seeds, other[task_id].seeds)
