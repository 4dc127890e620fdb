"""Infrastructure failures of upstream's rollouts: told from the agent's doing, retried where that is cheap, marked.

Upstream turns most exceptions of an environment into reward 0. Here they are told apart where they happen (in the
environment's own process, where the exception is still whole), raised as :class:`leonardo.errors.InfrastructureError`,
and marked in the state that travels with the rollout; :mod:`leonardo.hooks.groups` leaves marked rollouts out.

All of it works only where ``LEONARDO_RUN`` or ``LEONARDO_EXCLUDE_INFRASTRUCTURE=1`` is set: see :func:`active`.
"""

import dataclasses
import errno
import functools
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

RUN, EXCLUDE = "LEONARDO_RUN", "LEONARDO_EXCLUDE_INFRASTRUCTURE"
RESET_TRIES, STEP_TIMEOUT = "LEONARDO_RESET_TRIES", "LEONARDO_STEP_TIMEOUT"

NOTES = "leonardo"
"""The key of our notes in a rollout's ``info``; upstream's metrics pass over it, since its value is no number."""

_FULL = {errno.ENOSPC, errno.EDQUOT}
_OF_A_FILE = (FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError)
"""Errors by which a sandbox speaks of files in it: the agent's to look after."""

_CLIENTS = {"docker", "requests", "urllib3", "http", "httpx", "httpcore", "aiohttp", "grpc", "openai", "litellm"}
"""Packages that talk to something else; their own exceptions say that it could not be reached."""

_log = logging.getLogger(__name__)


def recording() -> bool:
    """Whether the run's records are wanted."""
    return bool(os.environ.get(RUN))


def active() -> bool:
    """Whether infrastructure failures are to be left out; upstream's own way otherwise."""
    return recording() or os.environ.get(EXCLUDE) == "1"


def number(variable: str, default: int) -> int:
    """A whole number from the environment. Raises InputError."""
    from leonardo.errors import InputError

    text = os.environ.get(variable) or str(default)
    if not text.isdecimal():
        raise InputError(f"{variable}={text} is no whole number", f"Leave it out for {default}")
    return int(text)


def class_of(error: BaseException | None) -> str | None:
    """The class of an infrastructure failure (a value of FailureClass); None where the agent may have brought it about.

    Looks through Ray's wrapping and through the chain of causes.
    """
    from leonardo.errors import FailureClass, InfrastructureError

    for each in _chain(error):
        if isinstance(each, InfrastructureError):
            return each.failure.value
        if is_out_of_memory(each) or isinstance(each, _OF_A_FILE):
            return None
        if isinstance(each, OSError):  # TimeoutError and ConnectionError are among them
            return (FailureClass.SPACE if each.errno in _FULL else FailureClass.RUNTIME).value
        package = type(each).__module__.partition(".")[0]
        if package in _CLIENTS or package == "ray":
            return FailureClass.RUNTIME.value
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, unwrapped from Ray's, and its causes; Ray's own errors (a lost actor) are themselves."""
    for _ in range(20):
        if error is None:
            return
        inner = getattr(error, "cause", None)
        if isinstance(inner, BaseException) and type(error).__name__.startswith("RayTaskError"):
            error = inner
            continue
        yield error
        error = error.__cause__


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the sandbox was ended at its bounds (upstream's exception or ours): the agent's doing."""
    return any(kind.__name__ == "SandboxOOMError" for kind in type(error).__mro__)


def separated(environment: type) -> type:
    """Decorates upstream's sandbox environments: what the machine does wrong leaves them as InfrastructureError.

    A reset has no agent in it: whatever ends it is not the agent's. In a step and in the verification only what cannot
    be the agent's doing is; a sandbox that is over its memory stays what it is upstream, reward 0.
    """
    for name, wrap in {"reset": _reset, "step": _step, "_run_tests": _verification}.items():
        if name in vars(environment):
            setattr(environment, name, wrap(vars(environment)[name]))
    environment.leonardo_figures = lambda self: getattr(self, "leonardo_times", {})
    return environment


def _reset(inner: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(inner)
    async def reset(self: Any, *arguments: Any, **options: Any) -> Any:
        if not active():
            return await inner(self, *arguments, **options)
        started = time.perf_counter()
        try:
            answer = await inner(self, *arguments, **options)
        except Exception as error:
            from leonardo.errors import FailureClass, InputError

            inputs = any(isinstance(each, InputError | ValueError) for each in _chain(error))
            other = FailureClass.SET_UP if inputs else FailureClass.RUNTIME
            raise _infrastructure(error, class_of(error) or other.value, "a reset failed") from error
        self.leonardo_times = {"reset": [time.perf_counter() - started], "commands": [], "verify": []}
        return answer

    return reset


def _step(inner: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(inner)
    async def step(self: Any, *arguments: Any, **options: Any) -> Any:
        if not active():
            return await inner(self, *arguments, **options)
        times = getattr(self, "leonardo_times", {"commands": [], "verify": []})
        started, verified = time.perf_counter(), sum(times["verify"])
        try:
            return await inner(self, *arguments, **options)
        except Exception as error:
            failure = class_of(error)
            if failure is None:
                raise
            raise _infrastructure(error, failure, "a step failed") from error
        finally:
            # the verification is a part of the step that asks for it
            times["commands"].append(time.perf_counter() - started - (sum(times["verify"]) - verified))

    return step


def _verification(inner: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inner)
    def verification(self: Any) -> Any:
        if not active():
            return inner(self)
        from leonardo.errors import FailureClass, InfrastructureError
        from leonardo.hooks.sandbox import PreparedBackend

        tests = getattr(self, "_tests_dir", None)
        if not tests or not Path(tests, "test.sh").is_file():
            raise InfrastructureError(
                f"task {getattr(self, '_task_id', None)} has no test.sh in {tests}",
                "Prepare the task data anew",
                FailureClass.VERIFIER_BROKEN,
            )
        started = time.perf_counter()
        try:
            return inner(self)
        except Exception as error:
            # our sandboxes say themselves what was the machine's; of others a failed upload is taken to be that
            ours = isinstance(getattr(self, "_backend", None), PreparedBackend)
            if is_out_of_memory(error) or (ours and class_of(error) is None):
                raise
            failure = class_of(error) or FailureClass.RUNTIME.value
            raise _infrastructure(error, failure, "a verification failed") from error
        finally:
            if hasattr(self, "leonardo_times"):
                self.leonardo_times["verify"].append(time.perf_counter() - started)

    return verification


def _infrastructure(error: BaseException, failure: str, what: str) -> Exception:
    from leonardo.errors import FailureClass, InfrastructureError

    return InfrastructureError(f"{what} ({_reason(error)})", failure=FailureClass(failure))


def _reason(error: BaseException) -> str:
    """The innermost thing that was said, in one line."""
    *_, last = _chain(error)
    return " ".join(f"{type(last).__name__}: {last}".split())[:300]


def not_restarted(container: str) -> None:
    """A container was lost, and the next would be a fresh one without the agent's work: no verdict on that."""
    if active():
        from leonardo.errors import InfrastructureError

        raise InfrastructureError(f"container {container} was lost")


def mark(rollout: Any, error: BaseException, place: str) -> None:
    """Mark a rollout whose environment failed, and end it, if it was the machine's fault.

    Args:
        rollout: upstream's state of it.
        error: what ended the call of the environment.
        place: ``reset``, ``step`` or ``time-out``; the last is always the machine's (see :func:`step_limit`).
    """
    if not active():
        return
    failure = "runtime" if place == "time-out" else class_of(error)
    if failure is not None:
        rollout.done = True
        notes = rollout.info.setdefault(NOTES, {})
        notes["failure"] = {"class": failure, "place": place, "reason": _reason(error)}


def failure_of(state: Mapping[str, Any] | None) -> Mapping[str, str] | None:
    """The mark of a rollout (``class``, ``place``, ``reason``) in its state as a dict; None where there is none."""
    return ((state or {}).get("info") or {}).get(NOTES, {}).get("failure")


def mark_scored(state: dict[str, Any] | None, error: BaseException) -> None:
    """Mark a rollout whose score could not be had because what scores it was not reached."""
    failure = class_of(error) if active() and state is not None else None
    if failure is not None:
        notes = state.setdefault("info", {}).setdefault(NOTES, {})
        notes["failure"] = {"class": failure, "place": "score", "reason": _reason(error)}


def or_left_out(decide: Callable[[BaseException], bool]) -> Callable[[BaseException], bool]:
    """Decorates upstream's decision whether a failed reset ends the run or its rollout: a marked one, its rollout."""

    @functools.wraps(decide)
    def decided(error: BaseException) -> bool:
        return (active() and class_of(error) is not None) or decide(error)

    return decided


def retried(acquire: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Decorates what acquires and resets a rollout's environments: nothing is lost yet, so that it is tried again."""

    @functools.wraps(acquire)
    async def with_tries(*arguments: Any, **options: Any) -> Any:
        from leonardo.errors import FailureClass, FailureFamily

        left = number(RESET_TRIES, 3) if active() else 1
        while True:
            try:
                return await acquire(*arguments, **options)
            except Exception as error:
                left, failure = left - 1, class_of(error)
                if left < 1 or failure is None or FailureClass(failure).family is not FailureFamily.INFRASTRUCTURE:
                    raise
                _log.warning("environment not had, %d tries left: %s", left, _reason(error))

    return with_tries


def step_limit(seconds: float) -> float:
    """How long a step may take. Upstream's 120 s are shorter than what it grants the commands in it."""
    return float(max(number(STEP_TIMEOUT, 900), 1)) if active() else seconds


async def metrics_of(setup: Any, metrics: dict[str, Any], rollout: Any) -> tuple[Any, dict[str, Any]]:
    """Ask a rollout's environments for their metrics, in upstream's place: one that is lost does not end the run.

    An environment whose step timed out is ended, since the next rollout would wait for it; the pool replaces it.

    Returns:
        The set-up, with no environment left to ask, and the metrics by environment.
    """
    if not active():
        return setup, metrics
    import ray

    notes = rollout.info.setdefault(NOTES, {})
    stuck = notes.get("failure", {}).get("place") == "time-out"
    for name, (_, actor) in setup.acquired.items():
        if stuck:
            ray.kill(actor)
            continue
        try:
            if name in setup.active_env_names:
                metrics[name] = await actor.get_metrics.remote()
            times = (
                await actor.leonardo_figures.remote() if recording() and hasattr(actor, "leonardo_figures") else None
            )
        except ray.exceptions.RayError as error:  # its verdict, if there was one, stands
            _log.warning("environment %s gave no metrics: %s", name, _reason(error))
            continue
        if times:
            notes["sandbox"] = times
    return dataclasses.replace(setup, active_env_names=[]), metrics


async def replace_lost(pool: Any, lost: Any, make: Callable[[], Any]) -> None:
    """Put a fresh environment into the pool for one whose process is gone; else each one lost makes it smaller.

    Args:
        pool: upstream's pool.
        lost: the actor that is gone.
        make: starts another.
    """
    if not active():
        return
    fresh = make()
    await fresh.setup.remote()
    pool._actors[:] = [fresh if actor == lost else actor for actor in pool._actors]
    await pool._release_actor(fresh)
