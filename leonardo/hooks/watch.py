"""A rollout engine that has failed ends the run, which would else wait for rollouts that never come."""

import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

from leonardo.errors import InfrastructureError

_LOOK = 5.0
"""Seconds between looks at the engines."""


def watch_engines(engines: Sequence[Any], stop: threading.Event, look: float = _LOOK) -> None:
    """From now on, until ``stop`` is set, the main thread gets an InfrastructureError when one of ``engines`` fails.

    To be called in the main thread. It gets the error wherever it waits, and again where it is caught and retried.

    Args:
        engines: upstream's rollout actors, which tell of their engine when asked.
        stop: upstream's event; it is set before the engines are ended.
        look: seconds between looks.
    """
    said: list[str] = []

    def fail(number: int, frame: FrameType | None) -> None:
        if not stop.is_set():
            raise InfrastructureError(f"a rollout engine has failed: {said[0]}", "See the log of its actor")

    def watch() -> None:
        asked: dict[int, Any] = {}
        while not stop.wait(look):
            error = next(filter(None, (_failure(engine, asked) for engine in engines)), "") if not said else said[0]
            if error and not stop.is_set():
                said.append(error)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)

    signal.signal(signal.SIGUSR2, fail)
    threading.Thread(target=watch, name="leonardo-watch", daemon=True).start()


def _failure(engine: Any, asked: dict[int, Any]) -> str:
    """What is wrong with an engine; "" where it is well or busy. ``asked``: questions that wait for their answer."""
    import ray
    from ray.exceptions import RayError

    if id(engine) not in asked:
        asked[id(engine)] = engine.check_background_threads.remote()
    question = asked[id(engine)]
    try:
        if ray.wait([question], timeout=0)[0]:
            del asked[id(engine)]
            ray.get(question)
    except RayError as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:500]
    return ""
