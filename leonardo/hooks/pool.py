"""A queue for upstream's pool of environments, which is filled in one event loop and waited for in another."""

import asyncio
import threading
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class LoopSafeQueue(Generic[Item]):
    """:class:`asyncio.Queue`, unbounded, as far as upstream's pool uses it, for any number of event loops and threads.

    Ray runs each concurrency group of an actor in an event loop and a thread of its own. ``asyncio.Queue`` belongs to
    one loop: an item put in another marks the waiter as ready but does not wake its loop, which sleeps on until
    something else happens there. Here the waiter's own loop is told. First come, first served.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._items: deque[Item] = deque()
        self._waiters: deque[asyncio.Future[Item]] = deque()

    def qsize(self) -> int:
        """Items that nobody has taken."""
        return len(self._items)

    def put_nowait(self, item: Item) -> None:
        """Give ``item`` to whoever has waited longest, or keep it."""
        while True:
            with self._lock:
                if not self._waiters:
                    self._items.append(item)
                    return
                waiter = self._waiters.popleft()
            try:
                waiter.get_loop().call_soon_threadsafe(self._hand_over, waiter, item)
                return
            except RuntimeError:  # that loop is closed: nobody waits there any more
                continue

    async def put(self, item: Item) -> None:
        """As :meth:`put_nowait`; there is always room."""
        self.put_nowait(item)

    async def get(self) -> Item:
        """Take an item, waiting for one. May be cancelled at any time without an item being lost."""
        with self._lock:
            if self._items:
                return self._items.popleft()
            waiter: asyncio.Future[Item] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            with self._lock:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
            if waiter.done() and not waiter.cancelled():  # it came between the item and us
                self.put_nowait(waiter.result())
            raise

    def _hand_over(self, waiter: "asyncio.Future[Item]", item: Item) -> None:
        """In the waiter's loop: it may have given up since."""
        if waiter.done():
            self.put_nowait(item)
        else:
            waiter.set_result(item)
