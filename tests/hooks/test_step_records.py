"""Step records of upstream's trainer: the figures, their form, and when they are written."""

import json
import math
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from leonardo.gates.steps import StepRecord, read_records
from leonardo.hooks import step_records
from leonardo.hooks.fingerprints import Verdict


@pytest.fixture(autouse=True)
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("LEONARDO_RUN", str(tmp_path))
    step_records._book.cache_clear()
    return tmp_path


def group(*rewards: float | None, kept: bool = False, **other: Any) -> dict[str, Any]:
    failures = [{"class": "space", "place": "reset", "reason": "full"} for reward in rewards if reward is None]
    values = {
        "task_id": "t1", "family": "logs", "prompt_tokens": 30, "turns": 4, "parsed": 3,
        "response_tokens": [0 if reward is None else 5 for reward in rewards],
        "weights": [0] * len(rewards), "cut_off": [False] * len(rewards), "seconds": 2.0,
        "sandbox": {"reset": [0.01, 0.03], "commands": [0.002], "verify": []},
    }  # fmt: skip
    return values | {"rewards": list(rewards), "failures": failures, "kept": kept} | other


def update(**other: Any) -> dict[str, Any]:
    """A rank's evidence of an update on 10 tokens, 4 of them sampled with the learner's weights."""
    sums = {"tokens": 10, "ratio": 11.0, "divergence": 0.5, "entropy": 0.0, "entropy_tokens": 0, "own_tokens": 4}
    values = {
        "sums": sums | {"difference": 0.2, "loss": 0.6},
        "highest": {"ratio": 1.5, "divergence": 0.25, "own_deviation": 0.125, "difference": 0.1},
        "steps": 1, "norms": [2.0], "rates": [1e-6], "kept": 9.0, "asked": 10.0, "non_finite": [], "seconds": 3.0,
        "squared": 0.25, "moved": 5.0, "scalars": 20.0,
    }  # fmt: skip
    return values | other


def part(*groups: dict[str, Any], **other: Any) -> dict[str, Any]:
    return {"shards": 2, "waited": 1.5} | ({"groups": list(groups)} if groups else {}) | other


def record(*parts: dict[str, Any]) -> StepRecord:
    return StepRecord(**step_records.fields(3, parts, 9.0))


def test_memory_is_the_ranks_largest_in_gigabytes() -> None:
    first, second = ({"held": 10**9, "update": top, "hand_over": 10**9} for top in (3 * 10**9, 2 * 10**9))
    made = record(part(group(1, 0), update=update(memory=first)), part(update=update(memory=second)))
    assert made.memory == {"held": 1.0, "update": 3.0, "hand_over": 1.0}
    without = {"held": 0, "update": 0, "hand_over": 0}
    assert record(part(group(1, 0), update=update(memory=without))).memory == {}


def test_figures_of_two_ranks() -> None:
    groups = [group(1, 0, None, 0, kept=True), group(1, 1, None), group(1, None, None, family="nets"), group(0, 0)]
    second = update(highest={"ratio": 2.0, "divergence": 0.5, "own_deviation": 0.5, "difference": 0.3}, seconds=4.0)
    made = record(part(*groups, update=update()), part(update=second, waited=2.5))
    assert made.rewards == [[1, 0, None, 0], [1, 1, None], [1, None, None], [0, 0]]
    assert (made.groups, made.zero_variance_groups, made.dropped_groups, made.groups_kept) == (4, 2, 1, 1)
    assert (made.zero_variance_share, made.rollouts) == (0.5, 12)
    assert made.reward_mean == pytest.approx(4 / 8)
    assert (made.infrastructure_failures, made.failures_by_class) == (4, {"space": 4})
    assert made.families == ["logs", "logs", "nets", "logs"] and made.task_ids == ["t1"] * 4
    assert made.parsed_action_share == 0.75
    assert made.tokens == {"prompt": 120, "response": 8 * 5}
    assert made.response_length_mean == 5  # lost rollouts count in no mean
    assert (made.ratio_mean, made.ratio_max) == (pytest.approx(1.1), 2.0)
    assert (made.divergence_mean, made.divergence_max) == (pytest.approx(0.05), 0.5)
    assert (made.first_pass_ratio_max_deviation, made.logprob_difference_max) == (0.5, 0.3)
    assert made.logprob_difference_mean == pytest.approx(0.05)
    assert made.mask_fraction == pytest.approx(0.1)
    assert made.loss == pytest.approx(0.6)  # 1.2 of two ranks that upstream has both doubled
    assert made.gradient_norm == 2.0 and made.update_norm == pytest.approx(math.sqrt(0.5))
    assert (made.parameters_moved_share, made.learning_rate) == (0.25, 1e-6)
    assert (made.finite, made.non_finite, made.entropy_mean) == (True, [], None)
    assert made.times == {"generation": 2.0, "sandbox": 0.168, "rollout": 2.5, "update": 4.0, "step": 9.0}
    assert made.sandbox == {"reset_ms": [30.0, 30.0], "command_ms": [2.0, 2.0], "verify_ms": [], "destroy_ms": []}


def test_what_cannot_be_known_is_null() -> None:
    made = record(part(group(1, 1)))  # nothing was trained
    for name in (
        "mask_fraction", "ratio_mean", "ratio_max", "divergence_mean", "first_pass_ratio_max_deviation", "loss",
        "logprob_difference_mean", "gradient_norm", "update_norm", "parameters_moved_share", "finite", "entropy_mean",
        "learning_rate", "weights_digest", "weights_agree",
    ):  # fmt: skip
        assert getattr(made, name) is None, name
    assert made.groups_kept == 0 and made.zero_variance_groups == 1
    assert record(part()).reward_mean is None  # no group at all


def test_share_of_rollouts_that_a_limit_cut_off() -> None:
    """Over those that the infrastructure did not end, and of which it is known."""
    groups = [group(1, 0, None, cut_off=[False, True, True]), group(0, 0, cut_off=[None, False])]
    assert record(part(*groups)).overlong_share == pytest.approx(1 / 3)
    assert record(part(group(0, cut_off=[None]))).overlong_share is None


def test_rollouts_of_older_weights_say_nothing_of_agreement() -> None:
    sums = update()["sums"] | {"own_tokens": 0, "difference": 0.0}
    made = record(part(group(1, 0, kept=True), update=update(sums=sums)))
    assert made.logprob_difference_mean is None and made.first_pass_ratio_max_deviation is None
    assert made.ratio_mean == pytest.approx(1.1)


@pytest.mark.parametrize("norm", [math.nan, math.inf, 1.0])
def test_what_is_not_finite_is_null_and_named(norm: float) -> None:
    broken = update(norms=[norm], non_finite=["gradient"], squared=math.nan)
    broken["sums"] = broken["sums"] | {"loss": math.nan, "ratio": math.inf}
    made = record(part(group(1, 0, kept=True), update=broken))
    assert (made.finite, made.non_finite) == (False, ["gradient"])
    assert made.gradient_norm is None and made.update_norm is None and made.loss is None and made.ratio_mean is None


def begin(step: int) -> None:
    results = ({"batch/x": [1], "leonardo": part(group(1, None, kept=True), update=update())}, {"batch/x": [1]})
    step_records.begin_record(step, 0.0, results)
    assert results == ({"batch/x": [1]}, {"batch/x": [1]})  # what upstream logs is upstream's


def test_record_is_written_once_its_weights_are_synchronised(run: Path) -> None:
    step_records.finish_record(1, 0.1)  # the first synchronisation, before the first step
    begin(1)
    assert read_records(run / "steps.jsonl") == []
    step_records.note_verdict(Verdict(True, "ab", 3, [], []))
    step_records.finish_record(1, 0.25)
    begin(2)
    begin(3)
    step_records.finish_record(3, 0.5)  # two steps, one synchronisation
    records = read_records(run / "steps.jsonl")
    assert [each.step for each in records] == [1, 2, 3]
    assert [each.weights_agree for each in records] == [True, None, None]
    assert [each.weights_digest for each in records] == ["ab", None, None]
    assert [each.times.get("hand_over") for each in records] == [0.25, None, 0.5]


def test_excluded_rollouts_are_listed(run: Path) -> None:
    begin(4)
    assert [json.loads(line) for line in (run / "failures.jsonl").read_text().splitlines()] == [
        {"step": 4, "task_id": "t1", "class": "space", "place": "reset", "reason": "full"}
    ]


def test_end_of_the_run_waits_for_the_last_synchronisation(run: Path) -> None:
    begin(1)
    timer = threading.Timer(0.3, step_records.finish_record, [1, 0.5])
    timer.start()
    step_records.finish_records(Future())
    assert read_records(run / "steps.jsonl")[0].times["hand_over"] == 0.5
    timer.join()


def test_end_of_the_run_does_not_wait_for_a_thread_that_is_gone(run: Path) -> None:
    begin(1)
    thread: Future[None] = Future()
    thread.set_result(None)
    step_records.finish_records(thread)
    begin(2)
    step_records.flush_records()
    assert [each.step for each in read_records(run / "steps.jsonl")] == [1, 2]


def test_line_is_json_whatever_the_figures(run: Path) -> None:
    step_records.append_line(run / "x.jsonl", {"a": math.nan, "b": [math.inf, 1], "c": {"d": -math.inf}})
    assert json.loads((run / "x.jsonl").read_text()) == {"a": None, "b": [None, 1], "c": {"d": None}}


def test_nothing_happens_without_a_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEONARDO_RUN")
    results: tuple[dict[str, Any], ...] = ({"a": 1},)
    step_records.begin_record(1, 0.0, results)
    step_records.finish_record(1, 0.1)
    step_records.finish_records(Future())
    step_records.flush_records()
    assert list(run.iterdir()) == [] and results == ({"a": 1},)


def test_a_run_that_goes_on_from_a_state_makes_the_later_records_anew(run: Path) -> None:
    """The trainer was killed two steps after it had saved: those are made again, and stand once in the file."""
    for step in (1, 2, 3, 4):
        step_records.begin_record(step, 0.0, [{}])
    step_records.flush_records()
    (run / "failures.jsonl").write_text('{"step": 2, "class": "space"}\n{"step": 4, "class": "space"}\n{"step": 5, "cl')
    assert [record.step for record in read_records(run / "steps.jsonl")] == [1, 2, 3, 4]
    step_records._book.cache_clear()  # another process
    step_records.begin_record(3, 0.0, [{}])
    step_records.begin_record(4, 0.0, [{}])
    step_records.flush_records()
    assert [record.step for record in read_records(run / "steps.jsonl")] == [1, 2, 3, 4]
    assert (run / "failures.jsonl").read_text() == '{"step": 2, "class": "space"}\n'
