import asyncio
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from leonardo.errors import InfrastructureError
from leonardo.sandbox.driver import Driver, LayerStack, Limits
from leonardo.sandbox.drivers import ONE_ID, open_driver
from leonardo.sandbox.metrics import BOUNDS, Metrics
from leonardo.sandbox.namespaces import NamespacesDriver
from leonardo.sandbox.pool import PoolSettings, SandboxPool, State

LIMITS = Limits(disk=32 << 20)


@pytest.fixture
def make_pool(driver: Driver) -> Iterator[Callable[..., SandboxPool]]:
    pools = []

    def make(**settings: object) -> SandboxPool:
        pools.append(SandboxPool(PoolSettings(**settings, limits=LIMITS), driver=driver))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def eventually(condition: Callable[[], bool], seconds: float = 20) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def test_no_more_than_so_many_at_a_time(make_pool: Callable[..., SandboxPool], stack: LayerStack) -> None:
    pool = make_pool(concurrency=2)
    seen = []

    def episode(number: int) -> str:
        backend = pool.backend(stack)
        backend.start()
        seen.append(pool.metrics.to_json()["now"]["in-use"])
        answer = backend.run_command(f"echo {number}").stdout
        backend.close()
        backend.close()  # gives nothing back twice
        return answer

    with futures.ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(episode, range(12)))
    assert answers == [f"{number}\n" for number in range(12)]
    assert max(seen) == 2
    state = pool.metrics.to_json()
    assert state["now"] == {"in-use": 0, "waiting": 0}
    assert {kind: state["durations"][kind]["count"] for kind in ("reset", "command", "destroy", "wait")} == {
        "reset": 12,
        "command": 12,
        "destroy": 12,
        "wait": 12,
    }


def test_first_come_first_served(make_pool: Callable[..., SandboxPool]) -> None:
    pool = make_pool(concurrency=1)
    pool.wait_for_turn()
    order: list[int] = []

    def wait(number: int) -> None:
        pool.wait_for_turn()
        order.append(number)
        pool._give_back()

    threads = []
    for number in range(8):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        assert eventually(lambda number=number: pool.metrics.to_json()["now"]["waiting"] == number + 1)
    pool._give_back()
    for thread in threads:
        thread.join()
    assert order == list(range(8))


def test_who_waits_too_long_hears_of_it_and_takes_no_turn(
    make_pool: Callable[..., SandboxPool], stack: LayerStack
) -> None:
    pool = make_pool(concurrency=1, patience=0.1)
    holder, other = pool.backend(stack), pool.backend(stack)
    holder.start()
    with pytest.raises(InfrastructureError, match=r"no sandbox was free for 0\.1 s"):
        other.start()
    holder.close()
    other.start()
    assert other.run_command("true").exit_code == 0
    other.close()
    assert pool.metrics.to_json()["failures"] == {"wait": {"runtime": 1}}


def test_many_tasks_of_asyncio(make_pool: Callable[..., SandboxPool], stack: LayerStack) -> None:
    pool = make_pool(concurrency=4)  # more tasks than the loop has threads: those that wait may not hold one

    async def episode(number: int) -> str:
        backend = pool.backend(stack)
        await backend.start_async()
        try:
            return (await backend.run_command_async(f"echo {number}")).stdout
        finally:
            await backend.close_async()

    async def all_of_them() -> list[str]:
        return await asyncio.gather(*(episode(number) for number in range(60)))

    assert asyncio.run(all_of_them()) == [f"{number}\n" for number in range(60)]


def test_a_cancelled_task_gives_up_its_place(make_pool: Callable[..., SandboxPool]) -> None:
    pool = make_pool(concurrency=1)

    async def scenario() -> None:
        await pool.wait_for_turn_async()
        second = asyncio.create_task(pool.wait_for_turn_async())
        third = asyncio.create_task(pool.wait_for_turn_async())
        await asyncio.sleep(0.05)
        second.cancel()
        await asyncio.sleep(0)
        pool._give_back()
        await asyncio.wait_for(third, 5)
        pool._give_back()
        assert second.cancelled()

    asyncio.run(scenario())
    assert pool._free == 1


def test_the_next_states_are_started_ahead(make_pool: Callable[..., SandboxPool], stack: LayerStack) -> None:
    pool = make_pool(concurrency=2, ahead=2)
    other = replace(stack, environment={"STATE": "other"})
    pool.prefetch([stack, other, stack])
    assert eventually(lambda: len(pool._ready) == 2)
    backend = pool.backend(other)
    backend.start()
    assert backend.run_command("echo $STATE").stdout == "other\n"
    assert eventually(lambda: len(pool._ready) == 2)  # the third has taken its place
    backend.close()
    pool.prefetch([other])  # the others are not wanted any more
    assert eventually(lambda: [started.key[2] for started in pool._ready] == [(("STATE", "other"),)])
    backend = pool.backend(stack)
    backend.start()
    backend.close()
    assert pool.metrics.to_json()["events"] == {"prefetch-hit": 1, "prefetch-miss": 1}


def test_a_closed_pool_lets_nobody_wait(make_pool: Callable[..., SandboxPool], stack: LayerStack) -> None:
    pool = make_pool(concurrency=1, ahead=1)
    pool.prefetch([stack])
    pool.wait_for_turn()
    with futures.ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(pool.wait_for_turn)
        assert eventually(lambda: pool.metrics.to_json()["now"]["waiting"] == 1)
        pool.close()
        with pytest.raises(InfrastructureError, match="closed"):
            waiting.result(10)
    with pytest.raises(InfrastructureError, match="closed"):
        pool.backend(stack).start()
    pool.close()


def test_a_failed_start_frees_its_place_and_is_counted(
    make_pool: Callable[..., SandboxPool], stack: LayerStack
) -> None:
    pool = make_pool(concurrency=1)
    for _ in range(2):
        with pytest.raises(InfrastructureError):
            pool.backend(replace(stack, base=stack.base / "absent")).start()
    assert pool._free == 1
    assert pool.metrics.to_json()["failures"] == {"reset": {"runtime": 2}}


def test_pickled_it_is_a_pool_of_its_own() -> None:
    pool = SandboxPool(PoolSettings(concurrency=3, ahead=1))
    pool.wait_for_turn()
    copy = pickle.loads(pickle.dumps(pool))
    assert copy.settings == pool.settings
    assert (copy._free, pool._free) == (3, 2)


def test_layers_are_held_as_long_as_a_sandbox_on_them_lives(
    make_pool: Callable[..., SandboxPool], stack: LayerStack
) -> None:
    held: list[str] = []

    @contextmanager
    def opened(name: str, layers: LayerStack) -> Iterator[LayerStack]:
        held.append(name)
        try:
            yield layers
        finally:
            held.remove(name)

    pool = make_pool(concurrency=2, ahead=1)
    good, other = (State(name, partial(opened, name, stack)) for name in ("good", "other"))
    bad = State("bad", partial(opened, "bad", replace(stack, base=stack.base / "absent")))
    backend = pool.backend(good)
    backend.start()
    assert held == ["good"]
    with pytest.raises(InfrastructureError):
        pool.backend(bad).start()
    pool.prefetch([other])
    assert eventually(lambda: held == ["good", "other"])
    backend.close()
    assert eventually(lambda: held == ["other"])
    pool.close()
    assert held == []


IN_ANOTHER_PROCESS = """
import pickle, sys
pool, stack = pickle.load(sys.stdin.buffer)
backend = pool.backend(stack)
backend.start()
print(backend.run_command("cat /etc/base-marker").stdout, end="")
backend.close()
pool.close()
"""


def test_another_process_gets_a_pool_of_its_own(driver: NamespacesDriver, stack: LayerStack) -> None:
    """As an actor of Ray does: by pickling."""
    label = ONE_ID.label if "one user id" in driver.degraded else driver.name
    pool = SandboxPool(PoolSettings(concurrency=3, ahead=1), partial(open_driver, label))
    done = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS],
        input=pickle.dumps((pool, stack)),
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        check=False,
    )
    assert done.stdout == b"base\n", done.stderr.decode()


def test_metrics_as_text_and_json() -> None:
    metrics = Metrics()
    with metrics.measure("command"):
        pass
    with pytest.raises(InfrastructureError), metrics.measure("command"):
        raise InfrastructureError("the sandbox ended")
    with pytest.raises(RuntimeError), metrics.measure("file"):
        raise RuntimeError("no room")
    metrics.count("prefetch-hit")
    metrics.move("in-use", 2)
    state = metrics.to_json()
    assert state["durations"]["command"]["count"] == state["durations"]["command"]["buckets"]["+Inf"] == 1
    assert len(state["durations"]["command"]["buckets"]) == len(BOUNDS) + 1
    assert state["failures"] == {"command": {"runtime": 1}, "file": {"RuntimeError": 1}}
    text = metrics.prometheus()
    for line in (
        "# TYPE leonardo_sandbox_seconds histogram",
        'leonardo_sandbox_seconds_bucket{operation="command",le="+Inf"} 1',
        'leonardo_sandbox_seconds_count{operation="command"} 1',
        'leonardo_sandbox_failures_total{operation="command",class="runtime"} 1',
        'leonardo_sandbox_events_total{event="prefetch-hit"} 1',
        'leonardo_sandbox_now{state="in-use"} 2',
    ):
        assert line in text.splitlines()
