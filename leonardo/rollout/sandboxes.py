"""The sandboxes of tasks: prepared states from a store, through a pool."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from leonardo.assets.store import AssetStore
from leonardo.files import write_atomic, write_json
from leonardo.sandbox.backend import SandboxBackend
from leonardo.sandbox.driver import LayerStack
from leonardo.sandbox.pool import SandboxPool, State
from leonardo.tasks.task import Task

MakeBackend = Callable[[Task], SandboxBackend]
"""Gives a sandbox, not started, on a task's prepared state."""


class TaskSandboxes:
    """A :data:`MakeBackend` whose sandboxes come from ``pool``; while one lives, its layers stay unpacked.

    Args:
        store: has the tasks' prepared states.
        pool: bounds how many there are at a time.
    """

    def __init__(self, store: AssetStore, pool: SandboxPool) -> None:
        self._store = store
        self._pool = pool

    def __call__(self, task: Task) -> SandboxBackend:
        return self._pool.backend(self._state(task))

    def prefetch(self, tasks: Sequence[Task]) -> None:
        """Start sandboxes for these tasks ahead, in this order, as far as the pool allows."""
        self._pool.prefetch(map(self._state, tasks))

    def _state(self, task: Task) -> State:
        return State(task.digest, partial(self._stack, task))

    @contextmanager
    def _stack(self, task: Task) -> Iterator[LayerStack]:
        with self._store.using(task) as prepared:
            yield prepared.stack

    def write_metrics(self, path: Path) -> None:
        """What the sandboxes did and took, and how often layers were there: as JSON, and beside it for Prometheus."""
        cache = self._store.cache
        layers = {"hits": cache.hits, "misses": cache.misses, "evictions": cache.evictions}
        write_json(path, {**self._pool.metrics.to_json(), "layers": layers})
        write_atomic(path.with_suffix(".prom"), self._pool.metrics.prometheus())
