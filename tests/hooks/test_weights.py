"""Waiting for a pause: none is missed, a dead thread is told, time runs out."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from leonardo.hooks.weights import announce_pause, expect_pause, wait_for_pause


class Trigger:
    """Stands for upstream's trigger: any object with attributes."""


@pytest.fixture
def trigger() -> Trigger:
    return Trigger()


def test_pause_that_is_over_before_anybody_looks_is_seen(trigger: Trigger) -> None:
    thread: Future[None] = Future()
    expect_pause(trigger, thread)
    announce_pause(trigger)
    assert wait_for_pause(thread, timeout=0)


def test_pause_from_before_does_not_count(trigger: Trigger) -> None:
    thread: Future[None] = Future()
    expect_pause(trigger, thread)
    announce_pause(trigger)
    expect_pause(trigger, thread)
    assert not wait_for_pause(thread, timeout=0)


def test_wait_ends_when_the_pause_comes(trigger: Trigger) -> None:
    thread: Future[None] = Future()
    expect_pause(trigger, thread)
    timer = threading.Timer(0.2, announce_pause, [trigger])
    timer.start()
    started = time.monotonic()
    assert wait_for_pause(thread, timeout=30)
    assert time.monotonic() - started < 5
    timer.join()


def test_failure_of_the_thread_is_raised(trigger: Trigger) -> None:
    with ThreadPoolExecutor(1) as executor:
        thread = executor.submit(lambda: 1 // 0)
        expect_pause(trigger, thread)
        with pytest.raises(ZeroDivisionError):
            wait_for_pause(thread, timeout=30)


def test_thread_that_ended_without_a_pause_is_not_waited_for(trigger: Trigger) -> None:
    thread: Future[None] = Future()
    expect_pause(trigger, thread)
    thread.set_result(None)
    started = time.monotonic()
    assert not wait_for_pause(thread, timeout=30)
    assert time.monotonic() - started < 5


def test_pause_that_nobody_expects_is_no_error(trigger: Trigger) -> None:
    announce_pause(trigger)
