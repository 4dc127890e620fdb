"""Tests of paired outcomes against published values and each other; several seeds."""

import numpy
import pytest
from scipy.stats import t

from leonardo.evaluation.significance import mcnemar, over_seeds, swap_test


@pytest.mark.parametrize(
    ("better", "worse", "p_value"),
    [
        (9, 2, 0.06543),  # the worked example of R's exact2x2 (mcnemar.exact)
        (86, 150, 3.716e-5),  # Agresti, Categorical Data Analysis: approval of the prime minister
        (0, 0, 1.0),
        (1, 1, 1.0),
        (5, 0, 2 / 32),
    ],
)
def test_mcnemar_gives_published_values(better, worse, p_value):
    assert mcnemar(better, worse) == pytest.approx(p_value, rel=2e-3)
    assert mcnemar(worse, better) == mcnemar(better, worse)


def test_with_one_attempt_a_task_the_swap_test_is_mcnemar_s():
    """Twelve tasks, so that all exchanges are counted; ties change nothing."""
    base = [0] * 9 + [1] * 2 + [1]
    trained = [1] * 9 + [0] * 2 + [1]
    assert swap_test(base, trained) == pytest.approx(mcnemar(9, 2))


def test_attempts_at_one_task_change_places_together():
    """Three tasks that gain all four attempts are three signs, not twelve."""
    assert swap_test([0, 0, 0], [1, 1, 1]) == pytest.approx(2 / 2**3)


@pytest.mark.parametrize(("base", "trained"), [([0.0] * 5, [0.0] * 5), ([1.0] * 5, [1.0] * 5), ([0.5], [1.0])])
def test_where_nothing_can_be_told_the_p_value_is_one(base, trained):
    assert swap_test(base, trained) == 1.0


def test_the_swap_test_keeps_its_level():
    generator = numpy.random.default_rng(1)
    found = []
    for _ in range(120):
        rate = generator.beta(0.5, 0.5, 9)
        found.append(swap_test(generator.binomial(4, rate) / 4, generator.binomial(4, rate) / 4))
    assert numpy.mean(numpy.array(found) <= 0.05) <= 0.09


def test_several_seeds_have_an_interval_over_tasks_and_one_over_seeds():
    seeds = [{"a": 0.0, "b": 0.2, "c": 0.4}, {"a": 0.2, "b": 0.4, "c": 0.6}, {"a": 0.1, "b": 0.3, "c": 0.5}]
    found = over_seeds(seeds)
    assert found.differences == pytest.approx((0.2, 0.4, 0.3))
    assert found.value == pytest.approx(0.3)
    half = t.ppf(0.975, 2) * 0.1 / 3**0.5
    assert found.over_seeds == pytest.approx((0.3 - half, 0.3 + half))
    assert found.over_tasks[0] == pytest.approx(0.1, abs=0.02)


def test_seeds_of_different_tasks_are_pooled():
    found = over_seeds([{"a": 0.0}, {"b": 1.0}])
    assert (found.value, found.over_tasks) == (0.5, pytest.approx((0.0, 1.0)))


def test_one_seed_says_nothing_of_others_and_equal_ones_have_no_width():
    assert over_seeds([{"a": 0.1, "b": 0.1}]).over_seeds is None
    assert over_seeds([{"a": 0.25}, {"a": 0.25}]).over_seeds == (0.25, 0.25)
    with pytest.raises(ValueError):
        over_seeds([{}])
