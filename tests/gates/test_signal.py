import pytest

from leonardo.errors import InputError
from leonardo.gates.signal import has_signal, signal_figures
from leonardo.gates.steps import StepRecord, append_record, read_records


def record(step: int = 1, **values) -> StepRecord:
    """A step of two groups, one with signal."""
    base = {
        "step": step, "rewards": [[1, 0], [0, 0]], "task_ids": ["a", "b"], "families": ["f", "f"], "rollouts": 4,
        "groups": 2, "zero_variance_groups": 1, "zero_variance_share": 0.5, "groups_kept": 1, "dropped_groups": 0,
        "reward_mean": 0.25, "infrastructure_failures": 0, "failures_by_class": {}, "mask_fraction": 0.1,
        "ratio_mean": 1.0, "ratio_max": 1.1, "divergence_mean": 0.0, "divergence_max": 0.1,
        "first_pass_ratio_max_deviation": 0.01, "logprob_difference_mean": 0.02, "loss": 0.1, "gradient_norm": 1.0,
        "update_norm": 0.5, "parameters_moved_share": 0.9, "finite": True, "non_finite": [],
        "parsed_action_share": 0.8, "tokens": {"prompt": 10, "response": 10}, "response_length_mean": 5.0,
        "entropy_mean": 1.0, "weights_digest": f"digest-{step}", "weights_agree": True, "learning_rate": 1e-3,
        "times": {}, "sandbox": {},
    }  # fmt: skip
    return StepRecord(**base | values)


def test_variance_that_comes_from_lost_sandboxes_is_no_signal():
    assert has_signal([1, 0, None])
    assert not has_signal([1, 1, None])
    assert not has_signal([0, None, None])
    assert not has_signal([])


def test_figures_of_a_run():
    figures = signal_figures([record(1), record(2, update_norm=0.0, parsed_action_share=0.6), record(3)])
    assert (figures["updates"], figures["nonzero_updates"], figures["rollouts_after_update"]) == (3, 2, 8)
    assert (figures["groups"], figures["groups_with_signal"], figures["signal_share"]) == (6, 3, 0.5)
    assert figures["groups_without_signal_trained"] == 0
    assert figures["parsed_action_share"] == pytest.approx(2.2 / 3)
    assert (figures["finite"], figures["weights_agree"], figures["distinct_weights"]) == (True, True, 3)


def test_an_engine_that_trains_on_failures_is_found():
    """Rewards [1, lost]: trained on as [1, 0] it looks like signal."""
    figures = signal_figures([record(rewards=[[1, None], [0, 0]], infrastructure_failures=1)])
    assert figures["groups_with_signal"] == 0
    assert figures["groups_without_signal_trained"] == 1
    assert figures["infrastructure_share"] == 0.25


def test_what_was_not_measured_is_none_and_not_zero():
    figures = signal_figures(
        [record(mask_fraction=None, weights_agree=None, finite=None, update_norm=None, gradient_norm=None)]
    )
    assert figures["mask_fraction_max"] is None
    assert figures["weights_agree"] is None
    assert figures["finite"] is None
    assert figures["nonzero_updates"] == 0
    assert signal_figures([])["signal_share"] is None


def test_one_step_that_disagrees_or_is_not_finite_decides():
    figures = signal_figures([record(1), record(2, weights_agree=False, finite=False), record(3, weights_agree=None)])
    assert figures["weights_agree"] is False
    assert figures["finite"] is False


def test_records_are_read_back_and_an_unfinished_last_line_is_not_a_record(tmp_path):
    path = tmp_path / "steps.jsonl"
    append_record(path, record(1))
    append_record(path, record(2))
    with path.open("a") as stream:
        stream.write('{"step": 3, "rewa')
    assert [found.step for found in read_records(path)] == [1, 2]
    assert read_records(tmp_path / "none.jsonl") == []


def test_a_line_that_is_no_record_is_named(tmp_path):
    path = tmp_path / "steps.jsonl"
    append_record(path, record(1))
    with path.open("a") as stream:
        stream.write('{"step": "two"}\n')
    with pytest.raises(InputError, match=r"line 2 is no step record \(step"):
        read_records(path)
