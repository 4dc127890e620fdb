"""The figures of a comparison, and what they are held to (``launch/gates/evaluate.yaml``); several seeds together."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leonardo.errors import InputError
from leonardo.evaluation.compare import compare
from leonardo.evaluation.records import Comparison, EvaluationRecord
from leonardo.evaluation.significance import SeedsDifference, over_seeds
from leonardo.evaluation.statistics import task_mean
from leonardo.gates.criteria import Criterion, Finding
from leonardo.settings import LAUNCH, Settings, read_settings

CRITERIA = LAUNCH / "gates" / "evaluate.yaml"


class EvaluationCriteria(Settings):
    """The file of criteria."""

    criteria: tuple[Criterion, ...]


def load_criteria(path: Path = CRITERIA) -> tuple[Criterion, ...]:
    """What a comparison is held to. Raises InputError that names file and setting."""
    return read_settings(path, EvaluationCriteria).criteria


def figures_of(comparison: Comparison, base: EvaluationRecord, trained: EvaluationRecord) -> dict[str, Any]:
    """The figures of a comparison by the names of stages and criteria."""
    difference = comparison.difference
    low, high = difference.interval or (None, None)
    attempts = sum(len(task.attempts) for record in (base, trained) for task in record.tasks)
    excluded = base.infrastructure_failures + trained.infrastructure_failures
    return {
        "base": comparison.base_model,
        "trained": comparison.trained_model,
        "base_pass_rate": comparison.base.value,
        "trained_pass_rate": comparison.trained.value,
        "difference": difference.value,
        "difference_ci_low": low,
        "difference_ci_high": high,
        "p_value": difference.p_value,
        "mcnemar_p": difference.mcnemar_p,
        "better": difference.better,
        "worse": difference.worse,
        "evaluated_pairs": difference.pairs,
        "excluded_attempts": excluded,
        "excluded_share": round(excluded / attempts, 6) if attempts else None,
        "excluded_by_class": {"base": base.failures_by_class, "trained": trained.failures_by_class},
    }


def criteria_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """Criteria by name, each with value, threshold, whether it is met, and the reason for it."""
    return {
        finding.criterion.figure: {
            "value": finding.value,
            "threshold": finding.criterion.asks(),
            "ok": finding.ok,
            "reason": finding.criterion.reason,
        }
        for finding in findings
    }


def compare_seeds(pairs: Sequence[tuple[EvaluationRecord, EvaluationRecord]], seed: int = 0) -> SeedsDifference:
    """Several trainings, each (base, trained) under pins of its own, together.

    Raises:
        InputError: no pair; a pair that cannot be compared, or has no task with a valid attempt on both sides.
    """
    if not pairs:
        raise InputError("no pair of records", "Name base and trained of each seed")
    differences: list[dict[str, float]] = []
    for base, trained in pairs:
        compare(base, trained, seed)
        differences.append(_by_task(base, trained))
        if not differences[-1]:
            raise InputError(f"{trained.model}: no task has a valid attempt on both sides", "Evaluate again")
    return over_seeds(differences, seed)


def _by_task(base: EvaluationRecord, trained: EvaluationRecord) -> dict[str, float]:
    """Differences by task. The digest of the tasks tells tasks apart that share an id in two data sets."""
    after = {task.task_id: task_mean(task.attempts) for task in trained.tasks}
    means: Mapping[str, tuple[float | None, float | None]] = {
        f"{base.pins.get('tasks', '')}/{task.task_id}": (task_mean(task.attempts), after[task.task_id])
        for task in base.tasks
    }
    return {name: right - left for name, (left, right) in means.items() if left is not None and right is not None}
