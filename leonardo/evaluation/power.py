"""How many tasks show a given difference? And the other way round: what do so many tasks show?

The difference between trained and base at a task, over k attempts of each, varies for two reasons: training helps some
tasks more than others (``between``), and an attempt is a draw (``within``, which k attempts divide by k). With the
variance V of the mean over k attempts, n tasks and a difference d, the z-test of the mean difference has power 1 - b at

    n = ((z(1 - a/2) * sqrt(V + d^2) + z(1 - b) * sqrt(V)) / d)^2

With one attempt V + d^2 is the share of discordant tasks, and this is Connor's formula for McNemar's test (R. J.
Connor, Biometrics 43 (1987), 207-211). For the interval of a verdict it asks for a few tasks more than are needed where
V is not large against d^2.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy
from scipy.stats import norm

from leonardo.errors import InputError
from leonardo.evaluation.records import EvaluationRecord, TaskResult
from leonardo.evaluation.statistics import task_mean
from leonardo.evaluation.verdict import MINIMUM_PAIRS

LEVEL, POWER = 0.05, 0.8


@dataclass(frozen=True)
class Spread:
    """Variance of the difference at a task: of one attempt by chance, and between tasks. ``source`` says whence."""

    within: float
    between: float
    source: str

    def variance(self, attempts: int) -> float:
        """Of the difference of the means over ``attempts`` attempts of each policy at one task."""
        return self.between + self.within / attempts


def assumed(rate: float, difference: float, discordance: float | None = None, chance: float | None = None) -> Spread:
    """The spread where nothing was measured.

    Args:
        rate: share of attempts that the base passes.
        difference: trained - base.
        discordance: share of tasks at which one attempt of each ends differently. If not given, the two outcomes are
            taken to be independent, as if tasks were equally hard: more than is found where they are not.
        chance: share of the variance that comes from chance within a task, 0 to 1, which alone shrinks with more
            attempts. If not given, all of it where outcomes are independent, and none where a discordance was given.

    Raises:
        InputError: what cannot be: a rate outside of 0 to 1, a discordance that the two rates do not allow.
    """
    after = rate + difference
    if not (0 <= rate <= 1 and 0 <= after <= 1):
        raise InputError(f"rates of {rate:g} and {after:g} cannot be", "Both lie between 0 and 1")
    if chance is not None and not 0 <= chance <= 1:
        raise InputError(f"a share of {chance:g} due to chance cannot be", "It lies between 0 and 1")
    source = "given discordance"
    if discordance is None:
        discordance = rate * (1 - after) + after * (1 - rate)
        source = "independent outcomes"
        chance = 1.0 if chance is None else chance
    low, high = abs(difference), min(rate + after, 2 - rate - after)
    if not low - 1e-12 <= discordance <= high + 1e-12:
        raise InputError(
            f"a discordance of {discordance:g} cannot be with rates of {rate:g} and {after:g}",
            f"It lies between {low:g} and {high:g}",
        )
    variance = max(0.0, discordance - difference**2)
    within = (chance or 0.0) * variance
    return Spread(within, variance - within, source)


def measured(base: EvaluationRecord, trained: EvaluationRecord | None = None) -> Spread:
    """The spread that was seen, in one evaluation or in two of the same tasks.

    With one, the trained policy is taken to vary as the base does, and by the same difference at all tasks.

    Raises:
        InputError: no task has two valid attempts, or fewer than two tasks are in both.
    """
    sides = [record for record in (base, trained) if record is not None]
    chances = [_chance(record.tasks) for record in sides]
    if trained is None:
        return Spread(2 * chances[0], 0.0, f"chance in {base.model}, the same difference at all tasks")
    right = {result.task_id: result for result in trained.tasks}
    pairs = [(result, right[result.task_id]) for result in base.tasks if result.task_id in right]
    pairs = [pair for pair in pairs if all(_valid(result) for result in pair)]
    if len(pairs) < 2:
        raise InputError(
            f"{base.model} and {trained.model} share fewer than two tasks", "Give records of the same tasks"
        )
    differences = [task_mean(after.attempts) - task_mean(before.attempts) for before, after in pairs]
    by_chance = numpy.mean(
        [sum(chance / len(_valid(result)) for chance, result in zip(chances, pair, strict=True)) for pair in pairs]
    )
    between = max(0.0, float(numpy.var(differences, ddof=1)) - float(by_chance))
    return Spread(sum(chances), between, f"seen in {base.model} and {trained.model}, {len(pairs)} tasks")


def tasks_needed(
    spread: Spread, difference: float, attempts: int, *, power: float = POWER, level: float = LEVEL
) -> int:
    """Tasks that show ``difference`` at a two-sided ``level`` with this ``power``; no fewer than a verdict takes."""
    if not 1e-9 <= abs(difference) <= 2:  # NaN is neither; tables go to twice what was asked
        raise InputError(f"a difference of {difference:g} cannot be shown", "Give one of 0.000001 to 1, such as 0.1")
    if 0 < level < 1e-12:
        raise InputError(f"a level of {level:g} is too small to be told from 0", "Give 0.000001 or more")
    if not 0 < power < 1 or not 0 < level < 1 or attempts < 1:
        raise InputError(
            f"power {power:g}, level {level:g}, {attempts} attempts", "0 < power, level < 1; attempts >= 1"
        )
    variance = spread.variance(attempts)
    root = norm.ppf(1 - level / 2) * math.sqrt(variance + difference**2) + norm.ppf(power) * math.sqrt(variance)
    return max(MINIMUM_PAIRS, math.ceil((root / difference) ** 2 - 1e-9))


def power_of(spread: Spread, difference: float, attempts: int, tasks: int, *, level: float = LEVEL) -> float:
    """The probability that ``tasks`` tasks show ``difference``, in its direction."""
    variance = spread.variance(attempts)
    distance = abs(difference) * math.sqrt(tasks) - norm.ppf(1 - level / 2) * math.sqrt(variance + difference**2)
    if variance == 0:
        return float(distance > 0)
    return float(norm.cdf(distance / math.sqrt(variance)))


def table(
    spread: Spread, differences: Iterable[float], attempts: Sequence[int], **settings: float
) -> list[tuple[float, list[int]]]:
    """Tasks needed for each difference, with each number of attempts a task."""
    return [
        (difference, [tasks_needed(spread, difference, number, **settings) for number in attempts])
        for difference in differences
    ]


def _valid(result: TaskResult) -> list[int]:
    return [reward for reward in result.attempts if reward is not None]


def _chance(tasks: Sequence[TaskResult]) -> float:
    """Variance of one attempt at a task, averaged over tasks: unbiased, from those with two valid attempts or more."""
    valid = [rewards for task in tasks if len(rewards := _valid(task)) > 1]
    if not valid:
        raise InputError("no task was attempted twice", "Give --base and --discordance, or a record with more attempts")
    return float(numpy.mean([numpy.var(rewards, ddof=1) for rewards in valid]))
