"""Weight synchronisation: waiting for an event instead of polling for a state that can be missed."""

import threading
import time
from concurrent.futures import Future
from typing import Any

_LOOK = 0.1
"""Seconds between looks at the thread that synchronises."""

_EVENT = "leonardo_paused"


def expect_pause(trigger: Any, thread: "Future[Any]") -> None:
    """A synchronisation is about to be asked for; pauses before now do not count.

    Args:
        trigger: the object that asks the thread to synchronise.
        thread: the future of the thread. Both carry the event from now on.
    """
    event = threading.Event()
    setattr(trigger, _EVENT, event)
    setattr(thread, _EVENT, event)


def announce_pause(trigger: Any) -> None:
    """The actors have been paused. Called by the thread that synchronises, each time."""
    event = getattr(trigger, _EVENT, None)
    if event is not None:
        event.set()


def wait_for_pause(thread: "Future[Any]", timeout: float) -> bool:
    """Wait until the actors have been paused since :func:`expect_pause`, however short that was.

    Returns:
        Whether they have; False after ``timeout`` seconds, or where the thread ended without.

    Raises:
        Exception: what the thread ended with.
    """
    event, deadline = getattr(thread, _EVENT), time.monotonic() + timeout
    while not event.wait(_LOOK):
        if thread.done():
            thread.result()
            return event.is_set()
        if time.monotonic() > deadline:
            return False
    return True
