"""Patch 0002 in upstream's own functions: a weight synchronisation that is over at once does not stop the run.

The functions are taken out of upstream's trainer by name and run with stand-ins for Ray, actors and engines, so that
neither Ray nor vLLM is needed.
"""

import ast
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from queue import Full, Queue
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from leonardo.overlay.tree import Tree

MODULE = "training/open-instruct/open_instruct/grpo_fast.py"
NAMES = {"WeightSyncTrigger", "weight_sync_thread", "health_check_fn", "initialize_weight_sync"}
TIMEOUT = 2.0
"""Seconds after which upstream's health check gives up; minutes in earnest."""


class Remote:
    """An actor's method: called at once."""

    def __init__(self, function: Any) -> None:
        self.remote = function


class Actors:
    """Upstream's actor manager, as far as synchronisation uses it, with the history of its state."""

    def __init__(self) -> None:
        self.stopped = False
        self.history: list[bool] = []
        self.should_stop = Remote(lambda: self.stopped)
        self.set_should_stop = Remote(self._set)

    def _set(self, value: bool) -> None:
        self.stopped = value
        self.history.append(value)


def trainer(source: str, actors: Actors, executor: ThreadPoolExecutor, broadcast_seconds: float) -> dict[str, Any]:
    """Upstream's functions in a namespace that stands for the rest of its module and of its training function."""
    found = {
        node.name: node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in NAMES
    }
    assert found.keys() == NAMES, "upstream has renamed a function of the weight synchronisation"

    def gathered(values: list[Any], *args: Any, **options: Any) -> Any:
        """The actors' answers; those of a broadcast are pairs, which upstream gets as two lists."""
        pairs = bool(values) and isinstance(values[0], tuple)
        return tuple(zip(*values, strict=True)) if pairs else values

    def broadcast() -> tuple[list[Any], float]:
        time.sleep(broadcast_seconds)
        return [], broadcast_seconds

    space: dict[str, Any] = {
        "WEIGHT_SYNC_TIMEOUT_S": TIMEOUT,
        "Full": Full,
        "actor_manager": actors,
        "args": SimpleNamespace(verbose=False),
        "executor": executor,
        "futures": mock.MagicMock(),
        "logger": mock.MagicMock(),
        "np": mock.MagicMock(),
        "policy_group": SimpleNamespace(
            models=[SimpleNamespace(setup_model_update_group=mock.MagicMock(), broadcast_to_vllm=Remote(broadcast))]
        ),
        "ray": SimpleNamespace(get=lambda value: value),
        "ray_get_with_progress": gathered,
        "resume_training_step": 1,
        "stop_event": threading.Event(),
        "streaming_config": SimpleNamespace(inflight_updates=True),
        "threading": threading,
        "time": time,
        "Timer": mock.MagicMock(),
        "vllm_engines": [],
        "weight_sync_metrics_Q": Queue(1),
    }
    # what the patches import at the module's head
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("leonardo."):
            exec(compile(ast.Module([node], []), MODULE, "exec"), space)
    space |= {name: mock.MagicMock() for name in ("grpo_utils", "ModelGroup", "ActorManager", "Queue")}
    for node in found.values():
        module = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), node], [])
        exec(compile(ast.fix_missing_locations(module), MODULE, "exec"), space)
    return space


def first_synchronisation(source: str, broadcast_seconds: float) -> Actors:
    """Run it to its end. Raises what upstream raises."""
    actors = Actors()
    with ThreadPoolExecutor(1) as executor:
        space = trainer(source, actors, executor, broadcast_seconds)
        try:
            space["initialize_weight_sync"]()
        finally:
            space["stop_event"].set()
    return actors


def test_synchronisation_shorter_than_the_poll(upstream: Tree, commit: tuple[str, str]) -> None:
    source = upstream.git("show", f"{commit[1]}:{MODULE}")
    if commit[0] == "unpatched":
        with pytest.raises(RuntimeError, match="timed out"):
            for _ in range(5):  # the poll may by chance fall into the pause
                first_synchronisation(source, broadcast_seconds=0.001)
        return
    started = time.monotonic()
    for _ in range(5):
        assert first_synchronisation(source, broadcast_seconds=0.001).history == [True, False]
    assert time.monotonic() - started < 5 * TIMEOUT


def test_long_synchronisation_is_waited_for(upstream: Tree, commit: tuple[str, str]) -> None:
    source = upstream.git("show", f"{commit[1]}:{MODULE}")
    assert first_synchronisation(source, broadcast_seconds=0.5).history == [True, False]


def test_failure_of_the_synchronisation_ends_the_run(upstream: Tree, commit: tuple[str, str]) -> None:
    source = upstream.git("show", f"{commit[1]}:{MODULE}")
    started = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        first_synchronisation(source, broadcast_seconds=-1)  # time.sleep refuses it
    assert isinstance(caught.value.__cause__, ValueError) or "timed out" in str(caught.value)
    assert time.monotonic() - started < TIMEOUT + 5
