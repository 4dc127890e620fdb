"""Statistics against published values, hand-computed ones and an independent bootstrap."""

import math

import numpy
import pytest

from leonardo.evaluation.statistics import paired_difference, pass_rate, task_mean, wilson


@pytest.mark.parametrize(
    ("passed", "attempts", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I, method 3, and the three below
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_newcombe_s_published_intervals(passed, attempts, low, high):
    assert wilson(passed, attempts) == pytest.approx((low, high), abs=5e-5)


def test_wilson_refuses_no_trials():
    with pytest.raises(ValueError):
        wilson(0, 0)


def test_a_failure_of_the_infrastructure_is_no_attempt():
    assert task_mean([1, None, 0, None]) == 0.5
    assert task_mean([None, None]) is None


def test_pass_rate_weighs_tasks_not_attempts_and_counts_what_it_left_out():
    rate = pass_rate([[1, None, None, None], [0, 0, 0, 0], [None, None]])
    assert (rate.value, rate.tasks, rate.attempts, rate.excluded) == (0.5, 2, 5, 5)


def test_pass_rate_interval_is_that_of_resampled_tasks():
    """Attempts at one task agree here, so 400 attempts tell no more than 100 tasks: the interval must say so."""
    tasks = [[1, 1, 1, 1]] * 30 + [[0, 0, 0, 0]] * 70
    low, high = pass_rate(tasks).interval
    half = 1.96 * math.sqrt(0.3 * 0.7 / 100)
    assert (low, high) == pytest.approx((0.3 - half, 0.3 + half), abs=0.012)


def test_equal_tasks_do_not_make_a_rate_certain():
    rate = pass_rate([[0, 0, 0]] * 20)
    assert rate.value == 0
    assert rate.interval == pytest.approx((0, 0.1611), abs=5e-5)


def test_no_valid_attempt_has_no_rate():
    assert pass_rate([[None]])[:2] == (None, None)
    assert pass_rate([])[:2] == (None, None)


def test_paired_difference_agrees_with_a_bootstrap_written_out():
    generator = numpy.random.default_rng(3)
    difficulty = generator.beta(0.6, 1.2, 80)
    base = generator.binomial(1, difficulty[:, None], (80, 4))
    trained = generator.binomial(1, numpy.clip(difficulty + 0.2, 0, 1)[:, None], (80, 4))
    found = paired_difference(base.tolist(), trained.tolist(), seed=5)

    differences = trained.mean(1) - base.mean(1)
    drawn = differences[generator.integers(0, 80, (20_000, 80))].mean(1)
    assert found.value == pytest.approx(differences.mean())
    assert found.interval == pytest.approx(tuple(numpy.quantile(drawn, (0.025, 0.975))), abs=0.01)
    assert (found.better, found.worse) == (int((differences > 0).sum()), int((differences < 0).sum()))


def test_pairing_narrows_the_interval_where_tasks_differ_in_difficulty():
    base = [[0, 0]] * 40 + [[1, 1]] * 40
    trained = [[0, 1]] * 8 + [[0, 0]] * 32 + [[1, 1]] * 40
    low, high = paired_difference(base, trained).interval
    unpaired_half = 1.96 * math.sqrt(0.25 / 80 + 0.25 / 80)
    assert low > 0
    assert high - low < unpaired_half


def test_paired_difference_is_the_same_for_the_same_seed_only():
    # attempts of many different counts, so that two resamplings hardly ever end on the same quantile
    base = [[1] * (number % 3) + [0] * (number + 1) for number in range(40)]
    trained = [[1] * (number % 5) + [0] * (number + 1) for number in range(40)]
    assert paired_difference(base, trained, seed=1) == paired_difference(base, trained, seed=1)
    assert paired_difference(base, trained, seed=1).interval != paired_difference(base, trained, seed=2).interval


def test_a_task_without_a_valid_attempt_on_either_side_is_left_out_of_the_pairs_and_named():
    found = paired_difference([[None], [0, 0], [1, 0]], [[1], [1, None], [None, None]])
    assert (found.value, found.pairs, found.better, found.excluded) == (1.0, 1, 1, (0, 2))
    assert found.interval is None


def test_without_pairs_there_is_no_difference_to_speak_of():
    found = paired_difference([[None], [0]], [[1], [None]])
    assert (found.value, found.interval, found.pairs, found.excluded) == (None, None, 0, (0, 1))


def test_unequal_lists_are_refused():
    with pytest.raises(ValueError):
        paired_difference([[1]], [[1], [0]])
