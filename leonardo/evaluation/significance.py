"""Is a difference more than chance? Tests of paired outcomes, and what several training seeds say together.

The unit is the task, as in :mod:`leonardo.evaluation.statistics`. SciPy does the tests.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy

from leonardo.evaluation.statistics import CONFIDENCE, RESAMPLES, Interval, mean_difference, mean_interval


def mcnemar(better: int, worse: int) -> float:
    """Two-sided p-value of McNemar's exact test: of the tasks that differ, as many got better as worse.

    With one attempt a task these are McNemar's discordant pairs; with more it is the sign test over tasks.
    """
    from scipy import stats  # a second to import, and not before it is needed

    return float(stats.binomtest(better, better + worse).pvalue) if better + worse else 1.0


def swap_test(base: Sequence[float], trained: Sequence[float], seed: int = 0) -> float:
    """Two-sided p-value of: base and trained could change places at any task.

    Args:
        base, trained: shares of passed attempts, by task. All attempts at a task change places together, so this is
            McNemar's test clustered by task; with one attempt a task it is McNemar's exact test.
        seed: of the resampling, which stands in for all 2 ** tasks exchanges where these are more than 9,999.
    """
    from scipy import stats  # a second to import, and not before it is needed

    if len(base) < 2:
        return 1.0
    result = stats.permutation_test(
        (numpy.asarray(base), numpy.asarray(trained)),
        mean_difference,
        permutation_type="samples",
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=numpy.random.default_rng(seed),
    )
    return float(result.pvalue)


class SeedsDifference(NamedTuple):
    """What trainings with several seeds say together.

    Attributes:
        value: mean of the seeds' differences.
        differences: trained - base, a seed each.
        over_tasks: 95 % interval for these seeds and other tasks: tasks resampled, seeds averaged.
        over_seeds: 95 % interval for other seeds and these tasks: Student's t; ``None`` with one seed.
    """

    value: float
    differences: tuple[float, ...]
    over_tasks: Interval | None
    over_seeds: Interval | None


def over_seeds(differences: Sequence[dict[str, float]], seed: int = 0) -> SeedsDifference:
    """Put several seeds together.

    Args:
        differences: of each training seed, by task, trained - base. Seeds may have been evaluated on other tasks.

    Raises:
        ValueError: no seed, or one without a task.
    """
    if not differences or not all(differences):
        raise ValueError("every seed needs a task with a difference")
    means = [float(numpy.mean([*tasks.values()])) for tasks in differences]
    names = sorted({name for tasks in differences for name in tasks})
    by_task = [float(numpy.mean([tasks[name] for tasks in differences if name in tasks])) for name in names]
    return SeedsDifference(
        value=float(numpy.mean(means)),
        differences=tuple(means),
        over_tasks=mean_interval(by_task, seed) if len(by_task) > 1 else None,
        over_seeds=_student(means) if len(means) > 1 else None,
    )


def _student(values: Sequence[float]) -> Interval:
    from scipy import stats  # a second to import, and not before it is needed

    if min(values) == max(values):
        return Interval(values[0], values[0])
    interval = stats.ttest_1samp(values, 0).confidence_interval(CONFIDENCE)
    return Interval(float(interval.low), float(interval.high))
