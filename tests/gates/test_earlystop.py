import pytest
from pydantic import ValidationError

from leonardo.gates.direction import DirectionRule
from leonardo.gates.earlystop import StopRule, stopped_by, unjudged, window_means
from leonardo.gates.steps import StepRecord
from tests.gates.test_signal import record as _record


def records(figure: str, values: list[float | None]) -> list[StepRecord]:
    return [_record(step=number, **{figure: value}) for number, value in enumerate(values, 1)]


def stop(figure: str, values: list[float | None], **rule: object) -> str:
    found = stopped_by([StopRule(figure=figure, reason="so it is", **rule)], records(figure, values))
    return found.sentence if found else ""


@pytest.mark.parametrize(
    ("figure", "values", "rule", "asked"),
    [
        ("entropy_mean", [0.5, 0.02, 0.01, 0.0], {"window": 3, "least": 0.02}, "at least 0.02"),
        ("entropy_mean", [1.0, 4.0, 5.0], {"window": 2, "most": 4}, "at most 4"),
        ("mask_fraction", [0.1, 0.6, 0.6], {"window": 2, "most": 0.5}, "at most 0.5"),
        ("response_length_mean", [100.0, 300.0, 500.0], {"window": 2, "most": 350}, "at most 350"),
        ("overlong_share", [0.0, 0.0, 1.0], {"window": 1, "most": 0.9}, "at most 0.9"),
        ("reward_mean", [0.4, 0.6, 0.2, 0.2], {"window": 2, "keeps": 0.5}, "at least 0.5 of the best before, 0.5"),
    ],
)
def test_each_instability_stops_the_run_with_its_reason(figure, values, rule, asked):
    assert stop(figure, values[:-1], **rule) == ""
    sentence = stop(figure, values, **rule)
    assert f"step {len(values)}: {figure} was" in sentence
    assert f"(asked: {asked}): so it is" in sentence


def test_one_bad_step_does_not_stop_a_run():
    assert stop("mask_fraction", [0.1, 0.9, 0.1], window=3, most=0.5) == ""


def test_what_was_not_measured_stops_nothing_and_is_named():
    rule = StopRule(figure="entropy_mean", window=2, least=0.1, reason="so it is")
    assert stopped_by([rule], records("entropy_mean", [None, 0.0, None, 0.0])) is None
    assert unjudged([rule, rule], records("entropy_mean", [None, None])) == ["entropy_mean"]
    assert unjudged([rule], records("entropy_mean", [0.3, None])) == []
    assert window_means(rule, records("entropy_mean", [None, 0.25, 0.75])) == [None, 0.5]


@pytest.mark.parametrize(
    "rule", [{"figure": "nonsense", "least": 1}, {"figure": "reward_mean"}, {"figure": "reward_mean", "keeps": 2}]
)
def test_a_rule_that_cannot_be_judged_is_refused(rule):
    with pytest.raises(ValidationError):
        StopRule(window=2, reason="so it is", **rule)


@pytest.mark.parametrize(
    ("interval", "pairs", "direction"),
    [
        ((0.01, 0.3), 40, "credible positive direction"),
        ((0.0, 0.3), 40, "none shown"),
        ((-0.1, 0.3), 40, "none shown"),
        ((-0.3, -0.01), 40, "harmful"),
        ((0.2, 0.3), 39, "too few pairs"),
        (None, 40, "too few pairs"),
    ],
)
def test_the_direction_is_read_off_the_interval(interval, pairs, direction):
    assert DirectionRule(pairs=40, reason="so it is").judge(interval, pairs) == direction


def test_a_margin_asks_for_more():
    rule = DirectionRule(pairs=2, margin=0.05, reason="so it is")
    assert rule.judge((0.04, 0.3), 9) == rule.judge((-0.3, -0.04), 9) == "none shown"
    assert rule.judge((0.06, 0.3), 9) == "credible positive direction"
