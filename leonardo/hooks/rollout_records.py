"""What is noted of rollouts for the step records: on the rollout as it runs, and by step where groups come in.

A rollout's notes travel in its state (see :data:`leonardo.hooks.failures.NOTES`); the groups of a step are kept in the
process that prepares data until the learner fetches them. Nothing is noted unless ``LEONARDO_RUN`` is set.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from leonardo.hooks.failures import NOTES, failure_of, recording

GROUPS = "leonardo/groups"
"""The key of a step's groups in the metrics that upstream's data preparation hands to the learner."""

_UPDATES = "leonardo_updates"


def count_update(actor: Any) -> None:
    """The rollout actor's engine is about to get other weights. Counted from 0, as the learner counts them."""
    if recording():
        setattr(actor, _UPDATES, getattr(actor, _UPDATES, 0) + 1)


def note_weights(rollout: Any, actor: Any) -> None:
    """Note which weights the engine has: called before the first turn of a rollout and after its last.

    And the room that a rollout has: the most tokens of a response and of a whole conversation. Where requests of other
    lengths are under way (an evaluation's), it is not known which is this rollout's.
    """
    if recording():
        notes = rollout.info.setdefault(NOTES, {})
        notes.setdefault("weights", []).append(getattr(actor, _UPDATES, 0))
        requests = [*actor.request_metadata.values()]  # at once: another thread adds to them
        lengths = {request["original_sampling_params"].max_tokens for request in requests}
        if len(lengths) == 1:
            notes["room"] = [lengths.pop(), actor.llm_engine.model_config.max_model_len]
        else:
            notes.pop("room", None)


def note_turn(rollout: Any, calls: Sequence[Any]) -> None:
    """Note a turn of the policy's and whether it held a valid tool call."""
    if recording():
        notes = rollout.info.setdefault(NOTES, {})
        notes["turns"] = notes.get("turns", 0) + 1
        notes["parsed"] = notes.get("parsed", 0) + bool(calls)


@cache
def _steps() -> dict[int, list[dict[str, Any]]]:
    """The groups that came in for each step, in this process."""
    return {}


def note_group(step: int | None, result: Any, prompt: Sequence[int], rows: Any) -> None:
    """Note a group that came in, before anything is left out of it.

    Args:
        step: of upstream's data preparation, from 0; None for an evaluation, which is not recorded here.
        result: upstream's result of the prompt.
        prompt: its tokens.
        rows: the data set that it is from.
    """
    if step is not None and recording():
        _steps().setdefault(step, []).append(_group(result, prompt, rows[result.index]))


def keep_group(step: int | None) -> None:
    """The group that came in last is trained on."""
    if step is not None and recording():
        _steps()[step][-1]["kept"] = True


def hand_over_groups(metrics: dict[str, Any], step: int) -> None:
    """Put the groups of a step into the metrics that the learner fetches with its batch."""
    if recording():
        metrics[GROUPS] = _steps().get(step, [])
        for old in [each for each in _steps() if each < step - 1]:
            del _steps()[old]


def _group(result: Any, prompt: Sequence[int], row: Mapping[str, Any]) -> dict[str, Any]:
    states = result.request_info.rollout_states or [{}] * len(result.responses)
    notes = [(state.get("info") or {}).get(NOTES, {}) for state in states]
    failures = [failure_of(state) for state in states]
    response = [sum(mask) for mask in result.masks]
    times: dict[str, list[float]] = {}
    for note in notes:
        for name, seconds in note.get("sandbox", {}).items():
            times.setdefault(name, []).extend(seconds)
    task, family = _names(row, result.index)
    return {
        "task_id": task,
        "family": family,
        "rewards": [None if lost else float(score) for score, lost in zip(result.reward_scores, failures, strict=True)],
        "failures": [dict(failure) for failure in failures if failure],
        "prompt_tokens": len(prompt) * len(states) + sum(map(len, result.responses)) - sum(response),
        "response_tokens": response,
        "turns": sum(note.get("turns", 0) for note in notes),
        "parsed": sum(note.get("parsed", 0) for note in notes),
        "weights": [_throughout(note.get("weights", [])) for note in notes],
        "cut_off": [
            _cut_off(state, reason, len(tokens), len(prompt))
            for state, reason, tokens in zip(states, result.finish_reasons, result.responses, strict=True)
        ],
        "seconds": result.token_statistics.generation_time if result.token_statistics else None,
        "sandbox": times,
        "kept": False,
    }


def _cut_off(state: Mapping[str, Any], reason: str, length: int, prompt: int) -> bool | None:
    """Whether a limit on tokens ended a rollout; None where its limits are not known.

    Args:
        state: upstream's state of the rollout; empty where there are no tools.
        reason: why the engine ended its last turn; ``stop`` is the policy's own end.
        length, prompt: tokens of the response, observations included, and before it.
    """
    if reason != "stop":
        return True
    if not state or state.get("done"):
        return False
    room = (state.get("info") or {}).get(NOTES, {}).get("room")
    return None if room is None else length >= room[0] or prompt + length >= room[1]


def _throughout(counts: Sequence[int]) -> int | None:
    """Which weights a rollout was sampled with; None where they changed under it."""
    return counts[0] if len(counts) == 2 and counts[0] == counts[1] else None


def _names(row: Mapping[str, Any], index: int) -> tuple[str, str]:
    """A row's task id and family: its own columns, or its environment's settings."""
    settings = row.get("env_config") or {}
    if isinstance(settings, str):
        settings = json.loads(settings)
    places = [row, settings, *(settings.get("env_configs") or [])]

    def first(name: str, default: str) -> str:
        return next((str(place[name]) for place in places if place.get(name)), default)

    return first("task_id", str(index)), first("family", "")
