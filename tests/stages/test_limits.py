from leonardo.site import Cost
from leonardo.stages.definition import load_stage
from leonardo.stages.limits import RunLimits
from tests.gates.test_signal import record


class Clock:
    """Seconds that a test sets."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def limits_of(clock: Clock, *before, **changes) -> RunLimits:
    stage = load_stage("pilot")
    changed = {"bounds": stage.bounds.model_copy(update=changes), "early_stop": stage.early_stop}
    return RunLimits(stage.model_copy(update=changed), Cost(unit="GPU hours", count=4), before, clock)


def healthy(step: int, **values):
    return record(step, overlong_share=0.0, response_length_mean=50.0, **values)


def test_time_ends_a_run_and_time_before_an_interruption_counts() -> None:
    clock = Clock()
    limits = limits_of(clock, healthy(1, times={"step": 500.0}), minutes=10.0, cost=None)
    clock.seconds = 90.0
    assert not limits.look(healthy(2))
    clock.seconds = 100.0
    assert limits.look(healthy(3))
    assert limits.reason == "bound reached after step 3: 10 minutes of training"
    assert limits.figures() == {
        "early_stop": "none",
        "bound_reached": "10 minutes of training",
        "rules_not_judged": [],
        "cost": 0.6667,
        "cost_unit": "GPU hours",
    }


def test_cost_ends_a_run() -> None:
    clock = Clock()
    limits = limits_of(clock, minutes=None, cost=2.0)
    clock.seconds = 1799.0
    assert not limits.look(healthy(1))
    clock.seconds = 1800.0
    assert limits.look(healthy(2))
    assert limits.reason == "bound reached after step 2: 2 GPU hours"


def test_an_instability_ends_a_run_by_the_shipped_rules() -> None:
    limits = limits_of(Clock(), minutes=None, cost=None)
    assert [limits.look(healthy(step, mask_fraction=0.6)) for step in (1, 2, 3)] == [False, False, True]
    assert limits.figures()["early_stop"] == "mask_fraction"
    assert "early stop, step 3: mask_fraction was 0.6 on average of 3 steps" in limits.reason


def test_a_step_that_is_made_anew_after_a_kill_counts_once() -> None:
    before = [healthy(step, mask_fraction=0.6) for step in (1, 2)]
    limits = limits_of(Clock(), *before, minutes=None, cost=None)
    assert not limits.look(healthy(2, mask_fraction=0.6))
    assert limits.look(healthy(3, mask_fraction=0.6))


def test_a_rule_without_a_figure_is_said_not_to_be_judged() -> None:
    limits = limits_of(Clock(), minutes=None, cost=None)
    for step in range(1, 6):
        assert not limits.look(healthy(step, entropy_mean=None))
    assert limits.figures()["rules_not_judged"] == ["entropy_mean"]
