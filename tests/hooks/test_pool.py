"""The pool's queue between event loops: a sleeping loop is woken, and nothing is lost when a waiter gives up."""

import asyncio

import pytest

from leonardo.hooks.pool import LoopSafeQueue
from tests.loops import loop_in_a_thread


def put_from_another_loop(queue: "LoopSafeQueue[int] | asyncio.Queue[int]") -> int:
    """What a waiter in one loop gets when another loop puts 7. Raises TimeoutError when it is not woken."""
    with loop_in_a_thread() as taking, loop_in_a_thread() as giving:
        taken = asyncio.run_coroutine_threadsafe(queue.get(), taking)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.2), giving).result()  # the first loop is asleep by now
        asyncio.run_coroutine_threadsafe(queue.put(7), giving).result()
        return taken.result(timeout=1)


def test_put_in_another_loop_wakes_the_waiter() -> None:
    assert put_from_another_loop(LoopSafeQueue()) == 7


def test_asyncio_queue_does_not_wake_it() -> None:
    with pytest.raises(TimeoutError):
        put_from_another_loop(asyncio.Queue())


def test_first_come_first_served() -> None:
    async def run() -> list[int]:
        queue: LoopSafeQueue[int] = LoopSafeQueue()
        waiters = [asyncio.create_task(queue.get()) for _ in range(3)]
        await asyncio.sleep(0)
        for item in range(4):
            queue.put_nowait(item)
        return [*await asyncio.gather(*waiters), await queue.get(), queue.qsize()]

    assert asyncio.run(run()) == [0, 1, 2, 3, 0]


@pytest.mark.parametrize("cancel_first", [True, False])
def test_cancelled_waiter_loses_no_item(cancel_first: bool) -> None:
    async def run() -> int:
        queue: LoopSafeQueue[int] = LoopSafeQueue()
        waiter = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        steps = [lambda: waiter.cancel(), lambda: queue.put_nowait(7)]
        for step in steps if cancel_first else reversed(steps):
            step()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        return await asyncio.wait_for(queue.get(), 1)

    assert asyncio.run(run()) == 7


def test_item_handed_over_to_a_waiter_that_is_then_cancelled() -> None:
    async def run() -> int:
        queue: LoopSafeQueue[int] = LoopSafeQueue()
        waiter = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.put_nowait(7)
        asyncio.get_running_loop().call_soon(waiter.cancel)  # after the hand-over, before the waiter goes on
        with pytest.raises(asyncio.CancelledError):
            await waiter
        return await asyncio.wait_for(queue.get(), 1)

    assert asyncio.run(run()) == 7


def test_time_limit_leaves_no_waiter_behind() -> None:
    async def run() -> int:
        queue: LoopSafeQueue[int] = LoopSafeQueue()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue.get(), 0.01)
        queue.put_nowait(7)
        return queue.qsize()

    assert asyncio.run(run()) == 1


def test_waiter_of_a_closed_loop_is_passed_over() -> None:
    queue: LoopSafeQueue[int] = LoopSafeQueue()
    gone = asyncio.new_event_loop()
    waiting = gone.create_task(queue.get())
    gone.run_until_complete(asyncio.sleep(0))
    gone.close()
    queue.put_nowait(7)
    assert queue.qsize() == 1
    del waiting


def test_many_takers_and_givers() -> None:
    queue: LoopSafeQueue[int] = LoopSafeQueue()
    with loop_in_a_thread() as taking, loop_in_a_thread() as giving:
        taken = [asyncio.run_coroutine_threadsafe(queue.get(), taking) for _ in range(500)]
        for item in range(500):
            asyncio.run_coroutine_threadsafe(queue.put(item), giving)
        assert sorted(future.result(timeout=10) for future in taken) == list(range(500))
