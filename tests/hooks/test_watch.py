"""Engines that fail are told to the main thread, wherever it waits. Ray is a stand-in that answers at once."""

import sys
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import pytest

from leonardo.errors import InfrastructureError
from leonardo.hooks.watch import watch_engines


class RayError(Exception):
    """Ray's."""


class Engine:
    """A rollout actor: well, busy (no answer), or failed, as ``state`` says."""

    def __init__(self) -> None:
        self.state = "well"
        self.asked = 0
        self.check_background_threads = types.SimpleNamespace(remote=self._ask)

    def _ask(self) -> "Engine":
        self.asked += 1
        return self


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module in Ray's place."""

    def get(engine: Engine) -> None:
        if engine.state == "failed":
            raise RayError("ray::LLMRayActor.check_background_threads()\nRuntimeError: the engine is dead")

    module, exceptions = types.ModuleType("ray"), types.ModuleType("ray.exceptions")
    exceptions.RayError = RayError  # type: ignore[attr-defined]
    module.get = get  # type: ignore[attr-defined]
    module.wait = lambda engines, timeout: (  # type: ignore[attr-defined]
        [engine for engine in engines if engine.state != "busy"],
        [],
    )
    monkeypatch.setitem(sys.modules, "ray", module)
    monkeypatch.setitem(sys.modules, "ray.exceptions", exceptions)


@pytest.fixture
def stop() -> Iterator[threading.Event]:
    """Upstream's event."""
    event = threading.Event()
    yield event
    event.set()
    time.sleep(0.1)  # the watch has seen it


def wait_for(condition: Any, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_failure_reaches_a_main_thread_that_waits(stop: threading.Event) -> None:
    engines = [Engine(), Engine()]
    watch_engines(engines, stop, look=0.02)
    wait_for(lambda: engines[1].asked > 2)
    engines[1].state = "failed"
    with pytest.raises(InfrastructureError, match="has failed: RayError: RuntimeError: the engine is dead"):
        threading.Event().wait(10)


def test_failure_that_is_caught_comes_again(stop: threading.Event) -> None:
    engine = Engine()
    engine.state = "failed"
    watch_engines([engine], stop, look=0.02)
    for _ in range(2):
        with pytest.raises(InfrastructureError):
            threading.Event().wait(10)


def test_busy_engine_is_not_asked_again_and_again(stop: threading.Event) -> None:
    engine = Engine()
    engine.state = "busy"
    watch_engines([engine], stop, look=0.01)
    time.sleep(0.3)
    assert engine.asked <= 2


def test_engines_that_are_being_ended_are_no_failure(stop: threading.Event) -> None:
    engine = Engine()
    watch_engines([engine], stop, look=0.01)
    wait_for(lambda: engine.asked > 1)
    stop.set()
    engine.state = "failed"
    time.sleep(0.2)
