"""Many checks, some at a time: each result is handed on as it comes, and an interruption ends what runs."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import TypeVar

Result = TypeVar("Result")


def run_each(
    calls: Iterable[partial[Result]], take: Callable[[Result], object], *, jobs: int, stop: Callable[[], object]
) -> None:
    """Make ``calls``, ``jobs`` at a time, and give ``take`` each result in the order in which they end.

    Args:
        stop: ends what the calls have started; called where a KeyboardInterrupt comes, before it goes on.

    Raises:
        Exception: the first that a call raises; calls that were not begun are not made then.
    """
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="gate")
    try:
        for future in as_completed([pool.submit(call) for call in calls]):
            take(future.result())
    except KeyboardInterrupt:
        stop()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
