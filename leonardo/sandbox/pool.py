"""Sandboxes for many episodes at once: so many at a time, first come first served, the next ones started ahead.

A pool may be used from threads and from asyncio. Pickled, it becomes a pool of its own with the same settings, which
opens its driver when it first needs it: that is how a Ray actor gets one.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from leonardo.errors import InfrastructureError
from leonardo.sandbox.backend import ExecutionResult, SandboxBackend
from leonardo.sandbox.driver import Driver, LayerStack, Limits
from leonardo.sandbox.drivers import open_driver
from leonardo.sandbox.metrics import Metrics


@dataclass(frozen=True)
class State:
    """What a sandbox is to begin as.

    Attributes:
        key: states with the same key are the same.
        opened: gives the layers, which are there for as long as the block lasts.
    """

    key: Hashable
    opened: Callable[[], AbstractContextManager[LayerStack]]

    @classmethod
    def of(cls, stack: LayerStack) -> Self:
        """Layers that are always there."""
        key = (stack.base, stack.deltas, tuple(sorted(stack.environment.items())), stack.own)
        return cls(key, lambda: nullcontext(stack))


class _Started:
    """A sandbox that runs, and the hold on its layers."""

    def __init__(self, key: Hashable, backend: SandboxBackend, hold: ExitStack) -> None:
        self.key, self.backend, self._hold = key, backend, hold

    def close(self) -> None:
        with self._hold:
            self.backend.close()


@dataclass(frozen=True)
class PoolSettings:
    """How a pool works.

    Attributes:
        concurrency: sandboxes in use at a time; further callers wait in the order in which they came.
        ahead: sandboxes that may be started before they are asked for, besides those in use.
        patience: seconds that a caller waits for its turn before it gets an InfrastructureError.
        timeout: a command's default, in seconds.
        limits: of each sandbox.
    """

    concurrency: int
    ahead: int = 0
    patience: float = 3600.0
    timeout: float = 120.0
    limits: Limits = Limits()


class SandboxPool:
    """Bounded, fair access to a driver's sandboxes. A context manager; :meth:`close` ends every sandbox.

    Args:
        settings: bounds.
        open_driver: opens the driver, which the pool then owns; must be picklable if the pool is pickled.
        driver: one that is open already, and stays the caller's.
    """

    def __init__(
        self, settings: PoolSettings, open_driver: Callable[[], Driver] = open_driver, *, driver: Driver | None = None
    ) -> None:
        self.settings = settings
        self.metrics = Metrics()
        self._open_driver = open_driver
        self._driver = driver
        self._owns_driver = driver is None
        self._driver_lock = threading.Lock()
        self._changed = threading.Condition()
        self._free = settings.concurrency
        self._waiting: deque[Future[None]] = deque()
        self._wanted: deque[State] = deque()
        self._ready: deque[_Started] = deque()  # the oldest first
        self._underway: State | None = None  # which the starter is at
        self._starter: threading.Thread | None = None
        self._closed = False

    def __reduce__(self) -> tuple:
        return (SandboxPool, (self.settings, self._open_driver))

    # ---- sandboxes

    def backend(self, state: State | LayerStack) -> "PooledBackend":
        """A sandbox whose ``start`` waits for its turn and whose ``close`` makes room for the next."""
        return PooledBackend(self, _state_of(state))

    def prefetch(self, states: Iterable[State | LayerStack]) -> None:
        """Start sandboxes on these states in the background, in this order, as far as ``ahead`` allows.

        This replaces what was asked for before: sandboxes started ahead that are not asked for again are ended.
        """
        wanted, unused = list(map(_state_of, states)), []
        with self._changed:
            for started in [*self._ready, *([self._underway] if self._underway else [])]:
                match = next((state for state in wanted if state.key == started.key), None)
                if match:
                    wanted.remove(match)
                elif isinstance(started, _Started):
                    self._ready.remove(started)
                    unused.append(started)
            self._wanted = deque(wanted)
            if self._starter is None and self.settings.ahead and not self._closed:
                self._starter = threading.Thread(target=self._start_ahead, name="sandboxes-ahead", daemon=True)
                self._starter.start()
            self._changed.notify_all()
        for started in unused:
            self._discard(started)

    def _open(self) -> Driver:
        with self._driver_lock:
            if self._closed:
                raise InfrastructureError("the sandbox pool is closed")
            if self._driver is None:
                self._driver = self._open_driver()
            return self._driver

    def _take(self, state: State) -> _Started:
        """One that was started ahead (one that just is being started is waited for), or a new one."""

        def of_this(item: State | _Started | None) -> bool:
            return item is not None and item.key == state.key

        with self._changed:
            while not (found := next(filter(of_this, self._ready), None)) and of_this(self._underway):
                self._changed.wait()
            if found:
                self._ready.remove(found)
            elif wanted := next(filter(of_this, self._wanted), None):
                self._wanted.remove(wanted)  # this one serves
            self._changed.notify_all()
        self.metrics.count("prefetch-hit" if found else "prefetch-miss")
        return found or self._start(state)

    def _start(self, state: State) -> _Started:
        with self.metrics.measure("reset"), ExitStack() as hold:
            stack = hold.enter_context(state.opened())
            backend = self._open().backend(stack, timeout=self.settings.timeout, limits=self.settings.limits)
            backend.start()
            return _Started(state.key, backend, hold.pop_all())

    def _discard(self, started: _Started) -> None:
        with self.metrics.measure("destroy"):
            started.close()

    def _start_ahead(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closed or (self._wanted and len(self._ready) < self.settings.ahead)
                )
                if self._closed:
                    return
                state = self._underway = self._wanted.popleft()
            started = None
            try:
                started = self._start(state)
            except Exception:  # noqa: BLE001 - counted; whoever needs it tries for itself and hears why
                pass
            with self._changed:
                self._underway = None
                if started and not self._closed:
                    self._ready.append(started)
                    started = None
                self._changed.notify_all()
            if started:
                started.close()

    # ---- turns

    def _queue(self) -> Future[None]:
        """A place in the queue: done when it is its turn."""
        turn: Future[None] = Future()
        with self._changed:
            if self._closed:
                raise InfrastructureError("the sandbox pool is closed")
            self._waiting.append(turn)
            self.metrics.move("waiting", 1)
            self._call_next()
        return turn

    def _call_next(self) -> None:
        while self._free and self._waiting:
            turn = self._waiting.popleft()
            self.metrics.move("waiting", -1)
            if turn.set_running_or_notify_cancel():
                self._free -= 1
                self.metrics.move("in-use", 1)
                turn.set_result(None)

    def _give_back(self) -> None:
        with self._changed:
            self._free += 1
            self.metrics.move("in-use", -1)
            self._call_next()

    def _leave(self, turn: Future[None]) -> None:
        """Give up a place in the queue, or the turn if it has just come."""
        if not turn.cancel():
            self._give_back()

    def wait_for_turn(self) -> None:
        """Until fewer than ``concurrency`` sandboxes are in use. Raises InfrastructureError after ``patience``."""
        turn = self._queue()
        with self.metrics.measure("wait"):
            try:
                turn.result(self.settings.patience)
            except TimeoutError:
                self._leave(turn)
                raise InfrastructureError(
                    f"no sandbox was free for {self.settings.patience:g} s", "Allow more at a time, or end some"
                ) from None
            except CancelledError:
                raise InfrastructureError("the sandbox pool is closed") from None
            except BaseException:
                self._leave(turn)
                raise

    async def wait_for_turn_async(self) -> None:
        """:meth:`wait_for_turn` without a thread."""
        turn = self._queue()
        with self.metrics.measure("wait"):
            try:
                await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(turn)), self.settings.patience)
            except TimeoutError:
                self._leave(turn)
                raise InfrastructureError(
                    f"no sandbox was free for {self.settings.patience:g} s", "Allow more at a time, or end some"
                ) from None
            except asyncio.CancelledError:
                if turn.cancelled():  # not this task, but the pool has ended
                    raise InfrastructureError("the sandbox pool is closed") from None
                self._leave(turn)
                raise

    # ---- the end

    def close(self) -> None:
        """End every sandbox and the driver; callers that wait hear of it. May be called twice."""
        with self._changed:
            self._closed = True
            ready, self._ready = self._ready, deque()
            self._wanted.clear()
            waiting, self._waiting = self._waiting, deque()
            self.metrics.move("waiting", -len(waiting))
            self._changed.notify_all()
        for turn in waiting:
            turn.cancel()
        for started in ready:
            started.close()
        if self._starter and self._starter is not threading.current_thread():
            self._starter.join(60)
        with self._driver_lock:
            driver, self._driver = self._driver, None
        if driver and self._owns_driver:
            driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _state_of(state: State | LayerStack) -> State:
    return state if isinstance(state, State) else State.of(state)


class PooledBackend(SandboxBackend):
    """A sandbox of a pool: the interface of any other, and the same for asyncio."""

    def __init__(self, pool: SandboxPool, state: State) -> None:
        self._pool = pool
        self._state = state
        self._started: _Started | None = None

    def start(self) -> None:
        self.close()
        self._pool.wait_for_turn()
        self._take()

    async def start_async(self) -> None:
        """:meth:`start`; only the start itself occupies a thread."""
        await self.close_async()
        await self._pool.wait_for_turn_async()
        await asyncio.to_thread(self._take)

    def _take(self) -> None:
        try:
            self._started = self._pool._take(self._state)
        except BaseException:
            self._pool._give_back()
            raise

    def close(self) -> None:
        started, self._started = self._started, None
        if started:
            try:
                self._pool._discard(started)
            finally:
                self._pool._give_back()

    async def close_async(self) -> None:
        """:meth:`close` in a thread."""
        await asyncio.to_thread(self.close)

    async def run_command_async(self, command: str, timeout: float | None = None) -> ExecutionResult:
        """:meth:`run_command` in a thread."""
        return await asyncio.to_thread(self.run_command, command, timeout)

    def _running(self) -> SandboxBackend:
        if self._started is None:
            raise RuntimeError("the sandbox is not started")
        return self._started.backend

    def run_command(self, command: str, timeout: float | None = None) -> ExecutionResult:
        with self._pool.metrics.measure("command"):
            return self._running().run_command(command, timeout)

    def prepare(
        self,
        folders: Sequence[str] = (),
        files: Mapping[str, str | bytes] | None = None,
        links: Mapping[str, str] | None = None,
    ) -> None:
        with self._pool.metrics.measure("prepare"):
            self._running().prepare(folders, files, links)

    def write_file(self, path: str, content: str | bytes) -> None:
        with self._pool.metrics.measure("file"):
            self._running().write_file(path, content)

    def read_file(self, path: str, binary: bool = False) -> str | bytes:
        with self._pool.metrics.measure("file"):
            return self._running().read_file(path, binary)

    def put_archive(self, root: str, tar_bytes: bytes) -> None:
        with self._pool.metrics.measure("file"):
            self._running().put_archive(root, tar_bytes)
