"""The step records of upstream's trainer: put together in its main process, in the form of :mod:`leonardo.gates.steps`.

A record is begun when the ranks have made their step, and written when its weights have been synchronised (by the
thread that does it), or at the end of the run. Nothing is written unless ``LEONARDO_RUN`` names a folder.
"""

import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

from leonardo.hooks.failures import RUN, number, recording
from leonardo.hooks.groups import MINIMUM
from leonardo.hooks.update_records import EVIDENCE

STEPS_FILE, FAILURES_FILE = "steps.jsonl", "failures.jsonl"

_LAST_SYNCHRONISATION = 120.0
"""Seconds that the end of a run waits for the synchronisation of its last step."""


def begin_record(step: int, started: float, results: Sequence[dict[str, Any]]) -> None:
    """Begin the record of a training step.

    Args:
        step: from 1.
        started: when it began (``time.perf_counter``).
        results: what the ranks returned beside their metrics; their evidence is taken out.
    """
    if not recording():
        return
    parts = [result.pop(EVIDENCE) for result in results if EVIDENCE in result]
    _book().begin(fields(step, parts, time.perf_counter() - started))
    groups = next((part["groups"] for part in parts if "groups" in part), [])
    for group in groups:
        for failure in group["failures"]:
            append_line(_run() / FAILURES_FILE, {"step": step, "task_id": group["task_id"], **failure})


def note_verdict(verdict: Any) -> None:
    """The synchronisation under way was checked (:class:`leonardo.hooks.fingerprints.Verdict`)."""
    _book().verdict = verdict


def finish_record(step: int | None, seconds: float) -> None:
    """The weights of ``step`` were synchronised, in ``seconds``."""
    if recording():
        _book().finish(step, seconds)


def finish_records(thread: "Future[Any] | None") -> None:
    """The last step is done: wait for its synchronisation (by ``thread``), and write what is left."""
    if not recording():
        return
    deadline = time.monotonic() + (_LAST_SYNCHRONISATION if thread is not None else 0)
    while _book().pending and time.monotonic() < deadline and not (thread is not None and thread.done()):
        time.sleep(0.1)
    _book().flush()


def flush_records() -> None:
    """The run ends, however: write what is left, without waiting."""
    if recording():
        _book().flush()


def append_line(path: Path, value: Any) -> None:
    """Append one JSON object in a single write, and have it on the disk. What is no number is null."""
    line = json.dumps(_plain(value), allow_nan=False) + "\n"
    with path.open("ab", buffering=0) as stream:
        stream.write(line.encode())
        os.fsync(stream.fileno())


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _run() -> Path:
    return Path(os.environ[RUN])


def forget_from(folder: Path, step: int) -> None:
    """Drop the lines of ``step`` and later, and a last one that was cut short, of the step records and failures."""
    from leonardo.files import write_atomic

    for path in (folder / STEPS_FILE, folder / FAILURES_FILE):
        if path.is_file():
            lines = path.read_bytes().splitlines(keepends=True)
            kept = [line for line in lines if line.endswith(b"\n") and json.loads(line)["step"] < step]
            if len(kept) < len(lines):
                write_atomic(path, b"".join(kept))


class Book:
    """Records that wait for their weights to be synchronised, the oldest first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.pending: list[dict[str, Any]] = []
        self.verdict: Any = None
        self._begun = False

    def begin(self, record: dict[str, Any]) -> None:
        """Take in a record; those before it are not synchronised any more.

        The first of a process that goes on from a saved state drops what was recorded after that state: those steps
        are made anew.
        """
        with self._lock:
            if not self._begun:
                self._begun = True
                forget_from(_run(), record["step"])
            self.pending.append(record)

    def finish(self, step: int | None, seconds: float) -> None:
        """Write the records up to ``step``, which gets its synchronisation's figures."""
        with self._lock:
            verdict, self.verdict = self.verdict, None
            for record in [each for each in self.pending if step is not None and each["step"] <= step]:
                if record["step"] == step:
                    record["times"]["hand_over"] = round(seconds, 4)
                    if verdict is not None:
                        record["weights_digest"], record["weights_agree"] = verdict.digest, verdict.agree
                self._write(record)

    def flush(self) -> None:
        """Write all that is left."""
        with self._lock:
            for record in list(self.pending):
                self._write(record)

    def _write(self, record: dict[str, Any]) -> None:
        from leonardo.gates.steps import StepRecord, append_record

        append_record(_run() / STEPS_FILE, StepRecord(**record))
        self.pending.remove(record)


@cache
def _book() -> Book:
    """This process's."""
    return Book()


def fields(step: int, parts: Sequence[Mapping[str, Any]], seconds: float) -> dict[str, Any]:
    """The fields of a step record: of the groups that came in and of all ranks' evidence.

    Args:
        step: from 1.
        parts: a rank's evidence each (see :mod:`leonardo.hooks.update_records`); the first has the groups.
        seconds: how long the step took.
    """
    groups = next((part["groups"] for part in parts if "groups" in part), [])
    waited = [part["waited"] for part in parts if part.get("waited") is not None]
    updates = [part["update"] for part in parts if "update" in part]
    shards = parts[0]["shards"] if parts else 1
    record = _of_groups(groups) | _of_updates(updates, shards)
    record["times"] |= {
        "rollout": round(max(waited, default=0.0), 4),
        "update": round(max((update["seconds"] for update in updates), default=0.0), 4),
        "step": round(seconds, 4),
    }
    record["memory"] = _gigabytes([update.get("memory", {}) for update in updates])
    return {"step": step, "weights_digest": None, "weights_agree": None} | record


def _gigabytes(ranks: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """The largest of the ranks', a phase; nothing where no rank has a GPU."""
    phases = {name for rank in ranks for name, value in rank.items() if any(rank.values())}
    return {name: round(max(rank.get(name, 0) for rank in ranks) / 1e9, 3) for name in sorted(phases)}


def _of_groups(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    least = max(number(MINIMUM, 2), 1)
    valid = [[reward for reward in group["rewards"] if reward is not None] for group in groups]
    dropped = [len(rewards) < least and None in group["rewards"] for rewards, group in zip(valid, groups, strict=True)]
    flat = [not lost and len(set(rewards)) == 1 for rewards, lost in zip(valid, dropped, strict=True)]
    rewards = [reward for each in valid for reward in each]
    rollouts = sum(len(group["rewards"]) for group in groups)
    # of rollouts that the infrastructure did not end
    lengths = [length for length, reward in _of_rollouts(groups, "response_tokens") if reward is not None]
    cut_off = [cut for cut, reward in _of_rollouts(groups, "cut_off") if None not in (cut, reward)]
    times = {name: [each for group in groups for each in group["sandbox"].get(name, [])] for name in _SANDBOX}
    slowest = [group["seconds"] for group in groups if group["seconds"] is not None]
    classes = Counter(failure["class"] for group in groups for failure in group["failures"])
    return {
        "rewards": [group["rewards"] for group in groups],
        "task_ids": [group["task_id"] for group in groups],
        "families": [group["family"] for group in groups],
        "rollouts": rollouts,
        "groups": len(groups),
        "zero_variance_groups": sum(flat),
        "zero_variance_share": sum(flat) / len(groups) if groups else None,
        "groups_kept": sum(group["kept"] for group in groups),
        "dropped_groups": sum(dropped),
        "reward_mean": _ratio(math.fsum(rewards), len(rewards)),
        "infrastructure_failures": sum(classes.values()),
        "failures_by_class": dict(classes),
        "parsed_action_share": _ratio(
            sum(group["parsed"] for group in groups), sum(group["turns"] for group in groups)
        ),
        "tokens": {
            "prompt": sum(group["prompt_tokens"] for group in groups),
            "response": sum(length for length, _ in _of_rollouts(groups, "response_tokens")),
        },
        "response_length_mean": _ratio(sum(lengths), len(lengths)),
        "overlong_share": _ratio(sum(cut_off), len(cut_off)),
        "times": {
            "generation": round(max(slowest, default=0.0), 4),
            "sandbox": round(sum(seconds for each in times.values() for seconds in each), 4),
        },
        "sandbox": {f"{_SANDBOX[name]}_ms": _milliseconds(each) for name, each in times.items()} | {"destroy_ms": []},
    }


def _of_rollouts(groups: Sequence[Mapping[str, Any]], name: str) -> list[tuple[Any, float | None]]:
    """What was noted of each rollout, with its reward."""
    return [pair for group in groups for pair in zip(group[name], group["rewards"], strict=True)]


_SANDBOX = {"reset": "reset", "commands": "command", "verify": "verify"}


def _of_updates(updates: Sequence[Mapping[str, Any]], shards: int) -> dict[str, Any]:
    def total(name: str) -> float:
        return math.fsum(update["sums"][name] for update in updates)

    def highest(name: str, of: str) -> float | None:
        return _number(max(update["highest"][name] for update in updates)) if updates and total(of) else None

    def summed(name: str) -> float:
        return math.fsum(update[name] for update in updates)

    steps = max((update["steps"] for update in updates), default=0)
    norms = [norm for update in updates[:1] for norm in update["norms"]]
    broken = sorted({name for update in updates for name in update["non_finite"]})
    tokens, own = total("tokens"), total("own_tokens")
    asked = summed("asked")
    return {
        "mask_fraction": 1 - summed("kept") / asked if asked else None,
        "ratio_mean": _ratio(total("ratio"), tokens),
        "ratio_max": highest("ratio", "tokens"),
        "divergence_mean": _ratio(total("divergence"), tokens),
        "divergence_max": highest("divergence", "tokens"),
        "first_pass_ratio_max_deviation": highest("own_deviation", "own_tokens"),
        "logprob_difference_mean": _ratio(total("difference"), own),
        "logprob_difference_max": highest("difference", "own_tokens"),
        # upstream multiplies by the ranks that hold different data, since DeepSpeed averages over them
        "loss": _ratio(total("loss"), shards * steps),
        # of a gradient that is not finite DeepSpeed gives a norm of about 1
        "gradient_norm": _ratio(math.fsum(norms), len(norms)) if not broken else None,
        "update_norm": math.sqrt(summed("squared")) if steps and math.isfinite(summed("squared")) else None,
        "parameters_moved_share": _ratio(summed("moved"), summed("scalars")),
        "finite": not broken if updates else None,
        "non_finite": broken,
        "entropy_mean": _ratio(total("entropy"), total("entropy_tokens")),
        "learning_rate": next((rate for update in updates for rate in update["rates"]), None),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _ratio(total: float, count: float) -> float | None:
    return _number(total / count) if count else None


def _milliseconds(seconds: Iterable[float]) -> list[float]:
    """[p50, p95]; nothing where there was nothing."""
    ordered = sorted(seconds)
    if not ordered:
        return []
    return [round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3) for share in (0.5, 0.95)]
