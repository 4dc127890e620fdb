"""The process that waits for the next sandbox is never noticed, whatever happens to it."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from leonardo.sandbox.backend import SandboxBackend
from leonardo.sandbox.driver import LayerStack
from leonardo.sandbox.drivers import MANY_IDS
from leonardo.sandbox.namespaces import NamespacesDriver


@pytest.fixture
def own_stack(tmp_path: Path, tiny_root_archive: Path) -> Iterator[tuple[NamespacesDriver, LayerStack]]:
    """A driver of this test alone, and a stack of it."""
    with MANY_IDS.opened() as driver:
        driver.unpack(tiny_root_archive, tmp_path / "base")
        yield driver, LayerStack(tmp_path / "base")
        driver.remove(tmp_path / "base")


def children_of(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def nursery_and_others(driver: NamespacesDriver) -> tuple[int, list[int]]:
    """The holder's children, of which the nursery is the only one without a pid namespace of its own."""
    (holder,) = children_of(driver._client._guard.pid)
    children = children_of(holder)
    (nursery,) = (child for child in children if depth_of(child) == depth_of(holder))
    return nursery, [child for child in children if child != nursery]


def depth_of(process: int) -> int:
    """In how many pid namespaces a process is."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return len(next(line for line in lines if line.startswith("NSpid:")).split()) - 1


def spare_of(driver: NamespacesDriver) -> int:
    """The holder's only child besides the nursery, once no sandbox runs and the spare has been made."""
    end = time.monotonic() + 10
    while len(found := nursery_and_others(driver)[1]) != 1:
        assert time.monotonic() < end, f"the holder's children: {found}"
        time.sleep(0.01)
    return found[0]


def answer(backend: SandboxBackend, command: str) -> str:
    backend.start()
    try:
        return backend.run_command(command).stdout
    finally:
        backend.close()


def test_the_next_sandbox_is_the_spare(own_stack: tuple[NamespacesDriver, LayerStack]) -> None:
    driver, stack = own_stack
    backend = driver.backend(stack)
    assert answer(backend, "hostname") == "sandbox\n"
    spare = spare_of(driver)
    backend.start()
    assert spare in nursery_and_others(driver)[1]
    backend.close()
    assert spare_of(driver) != spare


def test_a_killed_spare_is_replaced(own_stack: tuple[NamespacesDriver, LayerStack]) -> None:
    driver, stack = own_stack
    backend = driver.backend(stack)
    answer(backend, "true")
    os.kill(spare_of(driver), signal.SIGKILL)
    time.sleep(0.1)
    assert answer(backend, "echo there") == "there\n"
    spare_of(driver)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_a_nursery_that_serves_no_more_is_replaced(
    own_stack: tuple[NamespacesDriver, LayerStack], number: signal.Signals
) -> None:
    driver, stack = own_stack
    backend = driver.backend(stack)
    answer(backend, "true")
    spare = spare_of(driver)
    os.kill(nursery_and_others(driver)[0], number)
    os.kill(spare, signal.SIGKILL)
    time.sleep(0.1)
    assert answer(backend, "echo there") == "there\n"
    assert answer(backend, "echo again") == "again\n"


def test_a_spare_does_not_hide_later_layers(
    own_stack: tuple[NamespacesDriver, LayerStack], tmp_path: Path, tiny_root_archive: Path
) -> None:
    driver, stack = own_stack
    answer(driver.backend(stack), "true")
    spare_of(driver)
    driver.unpack(tiny_root_archive, tmp_path / "other")
    answer(driver.backend(stack), "true")
    spare_of(driver)
    both = replace(stack, deltas=(tmp_path / "other",), environment={"WHICH": "later"})
    assert answer(driver.backend(both), "echo $WHICH; cat /etc/base-marker") == "later\nbase\n"
    driver.remove(tmp_path / "other")
