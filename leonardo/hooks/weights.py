"""Weight synchronisation: waiting for an event instead of polling for a state that can be missed."""

import threading
import time
from concurrent.futures import Future
from typing import Any

_LOOK = 0.1
"""Seconds between looks at the thread that synchronises."""


def announce_pause(trigger: Any) -> None:
    """The weights' thread has paused the actors. Called by that thread, each time."""
    _event(trigger).set()


def expect_pause(trigger: Any) -> None:
    """A synchronisation is about to be asked for: pauses before now do not count."""
    _event(trigger).clear()


def wait_for_pause(trigger: Any, thread: "Future[Any] | None", timeout: float) -> bool:
    """Wait until the actors were paused since :func:`expect_pause`, however short that was.

    Args:
        trigger: the object that asks the thread to synchronise; it carries the event.
        thread: the thread's future. Where it ended with an exception, that is raised here.
        timeout: seconds to wait at most.

    Returns:
        Whether they were paused; False after ``timeout``, or where the thread has ended without.
    """
    event, deadline = _event(trigger), time.monotonic() + timeout
    while not event.wait(_LOOK):
        if thread is not None and thread.done():
            thread.result()
            return event.is_set()
        if time.monotonic() > deadline:
            return False
    return True


def _event(trigger: Any) -> threading.Event:
    """The event that belongs to ``trigger``; ``setdefault`` on its attributes makes it once for all threads."""
    return vars(trigger).setdefault("leonardo_paused", threading.Event())
