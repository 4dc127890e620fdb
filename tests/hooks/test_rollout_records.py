"""What is noted of rollouts, and the groups of a step as the learner gets them."""

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from leonardo.hooks import rollout_records as records


@pytest.fixture(autouse=True)
def recording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEONARDO_RUN", str(tmp_path))
    records._steps().clear()


@dataclass
class Rollout:
    """Upstream's state of a rollout, as far as it is touched."""

    info: dict[str, Any] = field(default_factory=dict)
    done: bool = False


def engine(*lengths: int) -> Any:
    """Upstream's rollout actor with requests of so many tokens under way, and room for 10 in a conversation."""
    requests = {
        str(n): {"original_sampling_params": SimpleNamespace(max_tokens=most)} for n, most in enumerate(lengths)
    }
    return SimpleNamespace(
        request_metadata=requests, llm_engine=SimpleNamespace(model_config=SimpleNamespace(max_model_len=10))
    )


def rolled_out(
    actor: Any, *, turns: list[int], updates: int = 0, lost: bool = False, done: bool = False
) -> dict[str, Any]:
    """The state of a rollout with so many calls a turn, during which the engine's weights changed ``updates`` times."""
    rollout = Rollout(done=done)
    records.note_weights(rollout, actor)
    for calls in turns:
        records.note_turn(rollout, ["call"] * calls)
    for _ in range(updates):
        records.count_update(actor)
    records.note_weights(rollout, actor)
    rollout.info["leonardo"]["sandbox"] = {"reset": [0.5], "commands": [0.1] * len(turns), "verify": []}
    if lost:
        rollout.info["leonardo"]["failure"] = {"class": "runtime", "place": "step", "reason": "gone"}
    return vars(rollout)


def result(*states: dict[str, Any], rewards: list[float], reasons: list[str] | None = None) -> Any:
    size = len(states)
    return SimpleNamespace(
        index=4,
        responses=[[7, 8, 9]] * size,
        masks=[[1, 0, 1]] * size,
        finish_reasons=reasons or ["stop"] * size,
        reward_scores=rewards,
        request_info=SimpleNamespace(rollout_states=list(states)),
        token_statistics=SimpleNamespace(generation_time=2.5),
    )


ROWS = {4: {"env_config": {"max_steps": 3, "env_configs": [{"task_id": "t4", "family": "logs"}]}}}


def test_group_of_a_step() -> None:
    actor = engine(8, 8)
    states = [
        rolled_out(actor, turns=[1, 0, 2]),
        rolled_out(actor, turns=[1], updates=1),
        rolled_out(actor, turns=[], lost=True),
        rolled_out(actor, turns=[1]),
    ]
    records.note_group(0, result(*states, rewards=[1.0, 0.0, 0.0, 1.0]), [1, 2], ROWS)
    records.keep_group(0)
    metrics: dict[str, Any] = {"scores": 0.5}
    records.hand_over_groups(metrics, 0)
    assert metrics == {
        "scores": 0.5,
        records.GROUPS: [
            {
                "task_id": "t4",
                "family": "logs",
                "rewards": [1.0, 0.0, None, 1.0],
                "failures": [{"class": "runtime", "place": "step", "reason": "gone"}],
                "prompt_tokens": 4 * (2 + 1),
                "response_tokens": [2] * 4,
                "turns": 5,
                "parsed": 4,
                "weights": [0, None, 1, 1],
                "cut_off": [False] * 4,
                "seconds": 2.5,
                "sandbox": {"reset": [0.5] * 4, "commands": [0.1] * 5, "verify": []},
                "kept": True,
            }
        ],
    }


@pytest.mark.parametrize(
    ("lengths", "prompt", "done", "reason", "cut"),
    [
        ([8], 2, False, "stop", False),
        ([8], 2, False, "length", True),  # the last turn
        ([3], 2, False, "stop", True),  # an observation filled the response
        ([3], 2, True, "stop", False),  # submitted with its last token
        ([8], 7, False, "stop", True),  # an observation filled the conversation
        ([8, 3], 2, False, "stop", None),  # an evaluation's requests are under way, too
    ],
)
def test_a_rollout_that_a_limit_on_tokens_ended(
    lengths: list[int], prompt: int, done: bool, reason: str, cut: bool | None
) -> None:
    state = rolled_out(engine(*lengths), turns=[1], done=done)
    group = records._group(result(state, rewards=[0.0], reasons=[reason]), [1] * prompt, {})
    assert group["cut_off"] == [cut]


@pytest.mark.parametrize(
    ("row", "names"),
    [
        ({}, ("4", "")),
        ({"task_id": "a", "family": "f", "env_config": {"task_id": "b"}}, ("a", "f")),
        ({"env_config": {"env_name": "sandbox", "task_id": "b"}}, ("b", "")),
        ({"env_config": '{"env_configs": [{"task_id": "c"}]}'}, ("c", "")),
        ({"env_config": None}, ("4", "")),
    ],
)
def test_names_of_a_row(row: dict[str, Any], names: tuple[str, str]) -> None:
    assert records._names(row, 4) == names


def test_rollouts_without_environments_have_no_notes() -> None:
    group = records._group(result({}, {}, rewards=[0.0, 1.0]), [1], {})
    assert (group["rewards"], group["turns"], group["weights"]) == ([0.0, 1.0], 0, [None, None])
    assert group["cut_off"] == [False, False]


def test_steps_long_past_are_forgotten() -> None:
    for step in range(5):
        records.note_group(step, result({}, rewards=[0.0]), [1], ROWS)
    for step in range(5):
        metrics: dict[str, Any] = {}
        for _ in range(2):  # every rank asks
            records.hand_over_groups(metrics, step)
            assert len(metrics[records.GROUPS]) == 1
    assert sorted(records._steps()) == [3, 4]


def test_evaluations_are_not_recorded() -> None:
    records.note_group(None, result({}, rewards=[0.0]), [1], ROWS)
    records.keep_group(None)
    assert not records._steps()


def test_nothing_happens_without_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEONARDO_RUN")
    rollout, actor, metrics = Rollout(), engine(8), {"scores": 1.0}
    records.note_weights(rollout, actor)
    records.note_turn(rollout, ["call"])
    records.count_update(actor)
    records.note_group(0, result({}, rewards=[0.0]), [1], ROWS)
    records.keep_group(0)
    records.hand_over_groups(metrics, 0)
    assert rollout == Rollout() and vars(actor) == vars(engine(8)) and metrics == {"scores": 1.0}
