"""Trajectories in ATIF, the Agent Trajectory Interchange Format of Harbor (https://harborframework.com/docs/trajectory-format).

One document a rollout: a system and a user step, then a step a turn with its tool call, the observation that answers
it, token counts, token ids and log-probabilities. What ATIF has no field for stands under ``extra``.
"""

from typing import Any

import leonardo
from leonardo.rollout.episode import Rollout, Turn
from leonardo.rollout.formats import Call

SCHEMA_VERSION = "ATIF-v1.7"


def to_atif(rollout: Rollout, model: str = "") -> dict[str, Any]:
    """``rollout`` as an ATIF document (JSON values only). ``model`` is the policy's name."""
    steps: list[dict[str, Any]] = [
        {"step_id": number, "source": message["role"], "message": message["content"]}
        for number, message in enumerate(rollout.messages, start=1)
    ]
    steps += [_agent_step(turn, number) for number, turn in enumerate(rollout.turns, start=len(steps) + 1)]
    times = rollout.times
    agent = {"name": "leonardo", "version": leonardo.__version__, "tool_definitions": list(rollout.tools)}
    if model:
        agent["model_name"] = model
    return {
        "schema_version": SCHEMA_VERSION,
        "session_id": f"{rollout.task_id}-{rollout.seed}",
        "agent": agent,
        "steps": steps,
        "final_metrics": {
            "total_prompt_tokens": sum(turn.prompt_tokens for turn in rollout.turns),
            "total_completion_tokens": sum(turn.completion_tokens for turn in rollout.turns),
            "total_steps": len(steps),
        },
        "extra": {
            "task_id": rollout.task_id,
            "family": rollout.family,
            "group": rollout.group,
            "seed": rollout.seed,
            "reward": rollout.reward,
            "finish": rollout.finish.value,
            "verifier": rollout.status,
            "failure": rollout.failure.value if rollout.failure else None,
            "failure_reason": rollout.failure_reason,
            "seconds": {"reset": times.reset, "commands": times.commands, "verify": times.verify,
                        "destroy": times.destroy},
        },
    }  # fmt: skip


def _agent_step(turn: Turn, number: int) -> dict[str, Any]:
    step: dict[str, Any] = {
        "step_id": number,
        "source": "agent",
        "message": turn.text,
        "metrics": {
            "prompt_tokens": turn.prompt_tokens,
            "completion_tokens": turn.completion_tokens,
            "completion_token_ids": list(turn.tokens),
            "logprobs": list(turn.logprobs),
        },
        "extra": {"exit_code": turn.exit_code, "seconds": turn.seconds},
    }
    result: dict[str, Any] = {"content": turn.observation}
    # a terminal's turn may be known by its command alone
    calls = turn.calls or ((Call("bash", {"command": turn.command}),) if turn.command else ())
    names = [f"call_{number}", *(f"call_{number}_{again}" for again in range(2, len(calls) + 1))]
    if calls:
        step["tool_calls"] = [
            {"tool_call_id": name, "function_name": call.name, "arguments": dict(call.arguments)}
            for name, call in zip(names, calls, strict=True)
        ]
        result["source_call_id"] = names[0]
    if turn.observation:
        step["observation"] = {"results": [result]}
    return step
