"""Evaluate one policy on pinned tasks: the same tasks, sandbox, prompts, sampling and seeds for whoever is compared."""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import JsonValue

from leonardo.errors import InputError
from leonardo.evaluation.records import EvaluationRecord, Part, TaskResult, read_record
from leonardo.evaluation.statistics import pass_rate
from leonardo.files import digest_of, sha256_bytes, write_atomic

REQUIRED_PINS = ("driver", "sampling")
"""Pins the caller must give; ``tasks``, ``attempts`` and ``seed`` are added here."""


class EvaluatedTask(Protocol):
    """What is needed of a task; :class:`leonardo.tasks.task.Task` has it."""

    @property
    def id(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def digest(self) -> str: ...


class EvaluatedRollout(Protocol):
    """What is needed of a rollout: ``reward`` is 0, 1 or ``None`` where the infrastructure failed."""

    @property
    def task_id(self) -> str: ...

    @property
    def seed(self) -> int: ...

    @property
    def reward(self) -> float | None: ...

    @property
    def failure(self) -> Any: ...


AnyTask = TypeVar("AnyTask", bound=EvaluatedTask)
AnyRollout = TypeVar("AnyRollout", bound=EvaluatedRollout)

RunRollouts = Callable[[Sequence[AnyTask], Sequence[int]], Iterable[AnyRollout]]
"""Rolls out ``tasks[i]`` with ``seeds[i]`` for every i (a task stands once an attempt), and returns the rollouts in any
order, best as they finish. A rollout that does not come back counts as an infrastructure failure."""


def attempt_seed(seed: int, task_id: str, attempt: int) -> int:
    """The sampling seed of an attempt: the same for every model, whatever the other tasks; 31 bits."""
    return int(sha256_bytes(f"{seed}:{task_id}:{attempt}".encode())[:8], 16) >> 1


def tasks_digest(tasks: Sequence[EvaluatedTask]) -> str:
    """Hex SHA-256 of what the tasks say and how they are judged, in any order."""
    return digest_of(sorted(task.digest for task in tasks))


def evaluate(
    run_rollouts: RunRollouts[AnyTask, AnyRollout],
    tasks: Sequence[AnyTask],
    *,
    attempts: int,
    seed: int,
    pins: Mapping[str, JsonValue],
    model: str,
    weights: str = "",
    output: Path | None = None,
    to_trajectory: Callable[[AnyRollout], Mapping[str, Any]] | None = None,
    progress: Callable[[int, int], None] | None = None,
    part: Part | None = None,
) -> EvaluationRecord:
    """Attempt every task ``attempts`` times and record the outcome.

    Args:
        run_rollouts: the rollout harness with the policy in it.
        tasks: at least one, ids unique.
        attempts: attempts a task.
        seed: of the evaluation; attempts get seeds of their own from it.
        pins: what must be the same for two records to be comparable: ``driver`` and ``sampling`` at least. Leave the
            model out, it is what differs.
        model: the model's folder or name; ``weights`` the digest of its weights.
        output: where the record is written as JSON, atomically; trajectories are then written beside it as
            ``<name>-trajectories.jsonl``, one a line, if ``to_trajectory`` turns a rollout into one.
        progress: called with (rollouts done, rollouts in all) after each.
        part: which tasks of a larger evaluation these are.

    Raises:
        InputError: without tasks, with the same id twice, without attempts, or without a required pin.
        ValueError: where the harness breaks its word (an unasked rollout, a reward other than 0 or 1).
    """
    _check(tasks, attempts, pins)
    planned = {(task.id, attempt_seed(seed, task.id, number)): task for task in tasks for number in range(attempts)}
    if len(planned) != len(tasks) * attempts:
        raise InputError("two attempts at a task got the same seed", "Choose another evaluation seed")
    started = time.monotonic()
    outcomes: dict[tuple[str, int], AnyRollout] = {}
    for rollout in run_rollouts(list(planned.values()), [key[1] for key in planned]):
        key = (rollout.task_id, rollout.seed)
        if key not in planned or key in outcomes:
            raise ValueError(f"rollout of {key} was not asked for, or came twice")
        outcomes[key] = rollout
        if progress:
            progress(len(outcomes), len(planned))
    seconds = time.monotonic() - started

    results = [_result(task, [key for key in planned if key[0] == task.id], outcomes) for task in tasks]
    rate = pass_rate([result.attempts for result in results], seed)
    failures = Counter(str(rollout.failure) for rollout in outcomes.values() if rollout.failure)
    if missing := len(planned) - len(outcomes):
        failures["no-rollout"] += missing
    kept = output is not None and to_trajectory is not None
    record = EvaluationRecord(
        model=model,
        weights=weights,
        pins={**pins, "tasks": tasks_digest(tasks), "attempts": attempts, "seed": seed},
        tasks=results,
        pass_rate=rate.value,
        pass_rate_ci=rate.interval,
        infrastructure_failures=rate.excluded,
        failures_by_class=dict(failures),
        seconds=round(seconds, 3),
        trajectories=f"{output.stem}-trajectories.jsonl" if kept else "",
        part=part,
    )
    if kept:
        lines = [json.dumps(to_trajectory(outcomes[key]), ensure_ascii=False) for key in planned if key in outcomes]
        write_atomic(output.with_name(record.trajectories), "".join(f"{line}\n" for line in lines))
    if output is not None:
        record.write(output)
    return record


def finished(
    path: Path,
    tasks: Sequence[EvaluatedTask],
    *,
    attempts: int,
    seed: int,
    pins: Mapping[str, JsonValue],
    weights: str,
    part: Part | None = None,
) -> EvaluationRecord | None:
    """The record at ``path``, where it is what :func:`evaluate` would come to with the same arguments; else None.

    Raises:
        InputError: it is no record.
    """
    if not path.is_file():
        return None
    record = read_record(path, EvaluationRecord)
    wanted = {**pins, "tasks": tasks_digest(tasks), "attempts": attempts, "seed": seed}
    seeds = [(task.id, [attempt_seed(seed, task.id, number) for number in range(attempts)]) for task in tasks]
    results = [(result.task_id, result.seeds) for result in record.tasks]
    same = (record.weights, record.part, record.pins, results) == (weights, part, wanted, seeds)
    return record if same and all(len(result.attempts) == attempts for result in record.tasks) else None


def _check(tasks: Sequence[EvaluatedTask], attempts: int, pins: Mapping[str, JsonValue]) -> None:
    if not tasks:
        raise InputError("no tasks to evaluate on", "Give at least one task")
    if attempts < 1:
        raise InputError(f"{attempts} attempts a task", "Give at least one")
    if twice := [name for name, count in Counter(task.id for task in tasks).items() if count > 1]:
        raise InputError(
            f"task {twice[0]} stands {Counter(t.id for t in tasks)[twice[0]]} times", "Name each task once"
        )
    for name in REQUIRED_PINS:
        if name not in pins:
            raise InputError(f"the evaluation is not pinned: {name} is missing", f"Give a pin {name}")


def _result(
    task: EvaluatedTask, keys: list[tuple[str, int]], outcomes: Mapping[tuple[str, int], EvaluatedRollout]
) -> TaskResult:
    rewards = [outcomes[key].reward if key in outcomes else None for key in keys]
    for reward in rewards:
        if reward not in (None, 0, 1):
            raise ValueError(f"{task.id}: reward {reward} is neither 0 nor 1")
    return TaskResult(
        task_id=task.id,
        family=task.kind or "other",
        attempts=[None if reward is None else int(reward) for reward in rewards],
        seeds=[key[1] for key in keys],
    )
