"""ATIF's rules as its specification states them: which fields there are, and how they refer to each other."""

import json

import pytest

from leonardo.errors import FailureClass
from leonardo.rollout.atif import to_atif
from leonardo.rollout.environment import Times
from leonardo.rollout.episode import Finish, Rollout, Turn
from leonardo.rollout.prompts import SUBMIT_COMMAND

STEP_FIELDS = {
    "system": {"step_id", "source", "message", "timestamp", "extra"},
    "user": {"step_id", "source", "message", "timestamp", "extra"},
    "agent": {
        "step_id", "source", "message", "timestamp", "extra",
        "model_name", "reasoning_effort", "reasoning_content", "tool_calls", "observation", "metrics", "llm_call_count",
    },
}  # fmt: skip
METRICS = {
    "prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "logprobs", "completion_token_ids",
    "prompt_token_ids", "extra",
}  # fmt: skip
ROOT = {"schema_version", "session_id", "trajectory_id", "agent", "steps", "notes", "final_metrics", "extra"}


@pytest.fixture
def rollout() -> Rollout:
    turns = (
        Turn("hm", None, "Format error: one bash call a turn.", None, 0.0, 4, (5, 6), (-0.1, -0.2)),
        Turn("<tool_call>…", "ls", "a\n\n(exit_code=0)", 0, 0.01, 8, (7,), (-0.3,)),
        Turn("<tool_call>…", SUBMIT_COMMAND, "", 0, 0.01, 12, (8,), (-0.4,)),
    )
    messages = [{"role": "system", "content": "Solve."}, {"role": "user", "content": "Do it."}]
    return Rollout(
        "t1", "files", 3, 17, messages, (1, 2, 5, 6, 7, 8), (False, False, True, True, True, True), (0.0,) * 6, turns,
        None, FailureClass.RUNTIME, "the channel broke", Finish.INFRASTRUCTURE, "", 0.5, Times(reset=0.1),
    )  # fmt: skip


def test_a_document_has_the_formats_fields_and_no_others(rollout):
    document = json.loads(json.dumps(to_atif(rollout, "tiny"), allow_nan=False))
    assert document["schema_version"] == "ATIF-v1.7"
    assert set(document) <= ROOT
    assert set(document["agent"]) <= {"name", "version", "model_name", "tool_definitions", "extra"}
    assert document["agent"]["model_name"] == "tiny"
    for step in document["steps"]:
        assert set(step) <= STEP_FIELDS[step["source"]]
        assert set(step.get("metrics", {})) <= METRICS


def test_steps_count_from_one_and_observations_answer_calls_of_their_step(rollout):
    document = to_atif(rollout)
    assert [step["step_id"] for step in document["steps"]] == [1, 2, 3, 4, 5]
    assert document["final_metrics"]["total_steps"] == 5
    assert [step["source"] for step in document["steps"]] == ["system", "user", "agent", "agent", "agent"]
    for step in document["steps"]:
        calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        for result in step.get("observation", {"results": []})["results"]:
            assert result.get("source_call_id") in calls | {None}
    malformed, listing, submission = document["steps"][2:]
    assert "tool_calls" not in malformed
    assert malformed["observation"]["results"] == [{"content": "Format error: one bash call a turn."}]
    assert listing["tool_calls"][0]["arguments"] == {"command": "ls"}
    assert listing["observation"]["results"][0]["content"] == "a\n\n(exit_code=0)"
    assert "observation" not in submission
    assert listing["metrics"]["logprobs"] == [-0.3]


def test_a_failure_of_the_machine_is_told_from_a_reward_of_zero(rollout):
    extra = to_atif(rollout)["extra"]
    assert (extra["reward"], extra["failure"], extra["finish"]) == (None, "runtime", "infrastructure")
