"""Sample sizes against published ones and against simulated evaluations."""

import numpy
import pytest

from leonardo.errors import InputError
from leonardo.evaluation import EvaluationRecord, TaskResult
from leonardo.evaluation.power import Spread, assumed, measured, power_of, table, tasks_needed

RUNS = 4000


def record(rewards: numpy.ndarray, model: str = "m") -> EvaluationRecord:
    """A record with ``rewards`` [tasks, attempts]."""
    tasks = [
        TaskResult(task_id=f"t{number}", family="f", attempts=row, seeds=list(range(len(row))))
        for number, row in enumerate(rewards.tolist())
    ]
    return EvaluationRecord(
        model=model,
        pins={"driver": "d"},
        tasks=tasks,
        pass_rate=0,
        pass_rate_ci=None,
        infrastructure_failures=0,
        seconds=0,
    )


def simulated_power(rates: numpy.ndarray, gains: numpy.ndarray, tasks: int, attempts: int) -> float:
    """The share of simulated evaluations whose mean difference lies above 0 by 1.96 standard errors."""
    generator = numpy.random.default_rng(7)
    chosen = generator.integers(0, len(rates), (RUNS, tasks))
    base = generator.binomial(attempts, rates[chosen]) / attempts
    trained = generator.binomial(attempts, numpy.clip(rates + gains, 0, 1)[chosen]) / attempts
    difference = trained - base
    return float((difference.mean(1) > 1.96 * difference.std(1, ddof=1) / tasks**0.5).mean())


@pytest.mark.parametrize(
    ("smaller", "larger", "tasks", "power"),
    [
        (0.125, 0.25, 248, 0.9),  # the worked example of R's MESS (power_mcnemar_test), after Connor 1987
        (0.05, 0.45, 22, 0.8),  # that of ajfhelpR (pwr_mcnemar)
    ],
)
def test_one_attempt_gives_published_sizes_of_mcnemar_s_test(smaller, larger, tasks, power):
    spread = assumed(0.5, larger - smaller, smaller + larger)
    assert power_of(spread, larger - smaller, 1, tasks) == pytest.approx(power, abs=5e-4)
    assert tasks_needed(spread, larger - smaller, 1, power=power) in (tasks, tasks + 1)


@pytest.mark.parametrize("attempts", [1, 4])
def test_the_tasks_that_are_named_have_the_power_that_was_asked_for(attempts):
    rates = numpy.full(1, 0.4)
    tasks = tasks_needed(assumed(0.4, 0.1), 0.1, attempts)
    assert simulated_power(rates, numpy.full(1, 0.1), tasks, attempts) == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize("attempts", [1, 2, 8])
def test_what_was_seen_with_four_attempts_tells_the_tasks_for_other_numbers(attempts):
    """Tasks of all difficulties, helped by different amounts. With few tasks the formula asks for some too many."""
    generator = numpy.random.default_rng(3)
    rates = generator.beta(0.7, 1.0, 1500)
    gains = numpy.where(generator.random(1500) < 0.3, 0.4 * (1 - rates), 0.0)
    seen = [generator.binomial(1, each[:, None], (1500, 4)) for each in (rates, rates + gains)]
    spread = measured(record(seen[0]), record(seen[1]))
    tasks = tasks_needed(spread, gains.mean(), attempts)
    assert 0.77 <= simulated_power(rates, gains, tasks, attempts) <= 0.9


def test_one_record_tells_chance_alone():
    generator = numpy.random.default_rng(5)
    seen = generator.binomial(1, 0.3, (4000, 4))
    spread = measured(record(seen))
    assert (spread.within, spread.between) == (pytest.approx(2 * 0.21, abs=0.02), 0)


def test_more_attempts_help_only_against_chance():
    assert assumed(0.3, 0.1, 0.2).within == 0
    by_chance = assumed(0.3, 0.1, 0.2, chance=1.0)
    assert tasks_needed(by_chance, 0.1, 4) < tasks_needed(by_chance, 0.1, 1)
    assert tasks_needed(assumed(0.3, 0.1, 0.2), 0.1, 4) == tasks_needed(by_chance, 0.1, 1)
    assert table(by_chance, [0.1], [1, 4]) == [(0.1, [tasks_needed(by_chance, 0.1, k) for k in (1, 4)])]


def test_policies_that_never_vary_need_the_fewest_tasks_that_a_verdict_takes():
    spread = measured(record(numpy.zeros((20, 3), int)), record(numpy.ones((20, 3), int)))
    assert (spread.within, spread.between) == (0, 0)
    assert tasks_needed(spread, 1.0, 3) == 10
    assert power_of(spread, 1.0, 3, 10) == 1.0
    assert power_of(Spread(0, 0, ""), 0.1, 1, 2) == 0.0


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: assumed(0.9, 0.2), "rates of 0.9 and 1.1"),
        (lambda: assumed(0.3, 0.1, 0.05), "between 0.1 and 0.7"),
        (lambda: assumed(0.3, 0.1, 0.2, 2.0), "share of 2"),
        (lambda: tasks_needed(Spread(1, 0, ""), 0.0, 1), "difference of 0"),
        (lambda: tasks_needed(Spread(1, 0, ""), 0.1, 0), "0 attempts"),
        (lambda: measured(record(numpy.ones((5, 1), int))), "attempted twice"),
        (lambda: measured(record(numpy.ones((1, 2), int)), record(numpy.ones((1, 2), int))), "fewer than two tasks"),
    ],
)
def test_what_cannot_be_is_named(call, named):
    with pytest.raises(InputError, match=named):
        call()


@pytest.mark.parametrize("difference", [float("nan"), 1e-200, 5.0])
def test_absurd_differences_are_refused_in_a_line(difference: float) -> None:
    with pytest.raises(InputError, match="cannot be shown"):
        tasks_needed(Spread(0.2, 0.0, ""), difference, 1)
