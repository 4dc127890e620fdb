"""A rollout without a reward moves neither mean, variance nor advantages of its group, and is not trained on."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from leonardo.errors import InfrastructureError
from leonardo.hooks import groups

LOST = {"info": {"leonardo": {"failure": {"class": "space", "place": "reset", "reason": "full"}}}}
FINE: dict[str, Any] = {"info": {}}


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEONARDO_RUN", raising=False)
    monkeypatch.setenv("LEONARDO_EXCLUDE_INFRASTRUCTURE", "1")
    groups._in_a_row().clear()


def group(*rewards: float | None) -> Any:
    """Upstream's result of a prompt: None for a rollout that was lost, to which upstream gives 0."""
    states = [FINE if reward is not None else LOST for reward in rewards]
    return SimpleNamespace(
        index=3,
        request_info=SimpleNamespace(rollout_states=states),
        reward_scores=[0.0 if reward is None else reward for reward in rewards],
    )


@pytest.mark.parametrize(
    ("rewards", "scores"),
    [
        ((1, 0, 1, 0), [1, 0, 1, 0]),
        ((1, 0, None, None), [1, 0, 0.5, 0.5]),
        ((1, 1, 1, None), [1, 1, 1, 1]),  # no variance: a 0 in the place of the lost one would make some
        ((0.7, 0.7, 0.7, None), [0.7] * 4),  # and so would a mean that is rounded
    ],
)
def test_lost_rollouts_move_nothing(rewards: tuple[Any, ...], scores: list[float]) -> None:
    result = group(*rewards)
    assert not groups.drop_group(result, 1)
    assert result.reward_scores == scores
    valid = [reward for reward in rewards if reward is not None]
    assert np.mean(scores) == pytest.approx(np.mean(valid), abs=1e-12)
    assert (len(set(scores)) == 1) == (len(set(valid)) == 1)


@pytest.mark.parametrize(("minimum", "dropped"), [("", True), ("1", False), ("2", True)])
def test_group_too_small_is_dropped(minimum: str, dropped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEONARDO_GROUP_MINIMUM", minimum)
    assert groups.drop_group(group(1, None, None, None), 1) is dropped


def test_group_without_any_reward_is_dropped_whatever_the_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEONARDO_GROUP_MINIMUM", "0")
    assert groups.drop_group(group(None, None), 1)


def test_group_of_an_evaluation_is_whole_or_dropped() -> None:
    assert groups.drop_group(group(1, 0, 1, None), None)
    assert not groups.drop_group(group(1, 0, 1, 0), None)


def test_many_lost_in_a_row_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEONARDO_LOST_GROUPS", "3")
    lost = group(None, None)
    for result in (lost, lost, group(1, 0), lost, lost):
        groups.drop_group(result, 1)
    with pytest.raises(InfrastructureError, match=r"3 groups in a row were lost \(space 6\)"):
        groups.drop_group(lost, 1)


def centred(scores: Any, size: int, kind: str) -> Any:
    """Stands for upstream's function; the real one is in tests/upstream."""
    grouped = np.asarray(scores, dtype=float).reshape(-1, size)
    spread = grouped.std(-1, keepdims=True) if kind == "standard" else 1
    return ((grouped - grouped.mean(-1, keepdims=True)) / spread).reshape(-1)


@pytest.mark.parametrize("kind", ["centered", "standard"])
def test_advantages_are_those_of_the_valid_rewards(kind: str) -> None:
    first, second = group(1, 0, None, 0), group(0, 1, 1, 0)
    assert not groups.drop_group(first, 1)
    result = SimpleNamespace(
        request_info=SimpleNamespace(rollout_states=first.request_info.rollout_states + [FINE] * 4)
    )
    scores = np.array(first.reward_scores + second.reward_scores)
    scores[2] -= 0.01  # a penalty of upstream's that depends on the length
    config = SimpleNamespace(num_samples_per_prompt_rollout=4, advantage_normalization_type=kind)
    advantages = groups.valid_advantages(centred, centred(scores, 4, kind), scores, result, config)
    alone = centred([1, 0, 0], 3, kind)
    assert advantages == pytest.approx([alone[0], alone[1], 0, alone[2], *centred([0, 1, 1, 0], 4, kind)])
    assert groups.failed(result) == {2}


def test_means_of_scorers_leave_lost_rollouts_out() -> None:
    parts = [{"a": 1.0}, {"a": 0.0}, {"a": 1.0}]
    assert groups.counted_rewards([1.0, 0.0, 1.0], parts, [FINE, LOST, FINE]) == ([1.0, 1.0], [{"a": 1.0}] * 2)
    assert groups.counted_rewards([0.0], [{}], [LOST]) == ([0.0], [{}])  # the group is dropped later


def test_saved_rollouts_say_null() -> None:
    records = [{"reward": 0.5, "advantage": 0.0, "request_info": {"rollout_state": state}} for state in (LOST, FINE)]
    records.append({"reward": 1.0, "request_info": None})
    groups.blank_missing_rewards(records)
    assert [record["reward"] for record in records] == [None, 0.5, 1.0]
    assert records[0]["advantage"] is None and records[1]["advantage"] == 0.0


def test_nothing_happens_without_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEONARDO_EXCLUDE_INFRASTRUCTURE")
    result = group(1, None, None)
    assert not groups.drop_group(result, 1) and result.reward_scores == [1, 0, 0]
    assert groups.failed(result) == set()
