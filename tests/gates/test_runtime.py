"""The gates on reset and runtime, on real sandboxes; and that a sandbox that is not whole fails them."""

from collections import Counter
from dataclasses import replace

import pytest

from leonardo.assets.store import AssetStore
from leonardo.gates import runtime
from leonardo.gates.reset import Snapshot, check_reset, difference, hostile_episode, snapshot
from leonardo.gates.runtime import LIMITS, check_runtime
from leonardo.sandbox.driver import Driver, LayerStack
from leonardo.tasks.task import Task

POST = "mkdir -p /data /home/user && echo a > /data/a && chown 33:33 /data/a && chmod 4755 /data/a"


@pytest.fixture
def task(make_task) -> Task:
    return make_task(POST)


@pytest.fixture
def stack(store: AssetStore, task: Task) -> LayerStack:
    store.build([task])
    return store.prepared(task).stack


def test_a_reset_restores_everything_after_the_worst(driver: Driver, stack: LayerStack) -> None:
    found = check_reset(driver, stack)
    assert found.identical, found.difference
    assert {"memory", "full", "destroyed"} <= set(found.did)


def test_what_a_reset_does_not_restore_is_named(driver: Driver, stack: LayerStack) -> None:
    """One sandbox that is looked at again without a reset stands for one that a reset leaves as it is."""
    backend = driver.backend(stack)
    try:
        backend.start()
        first = snapshot(backend)
        backend.start()
        backend.run_command("echo b > /data/a")
        assert "/data/a" in difference(first, snapshot(backend))
        backend.start()
        backend.run_command("sleep 1000 & echo x > /dev/shm/left")
        found = difference(first, snapshot(backend))
        assert "+process sleep" in found
        assert "+memory /dev/shm/left" in found
    finally:
        backend.close()


def test_a_full_disk_is_seen(driver: Driver, stack: LayerStack) -> None:
    backend = driver.backend(stack, limits=replace(LIMITS, disk=2 << 20))
    try:
        backend.start()
        small = snapshot(backend)
        assert "room" not in small.held
        assert difference(small, small) == "there is no room to write"
        assert "full" in hostile_episode(backend)
    finally:
        backend.close()


def test_snapshots_that_agree_do_not_differ() -> None:
    whole = Snapshot("a", Counter(["room"]))
    assert difference(whole, whole) == ""


def test_a_sandbox_does_what_episodes_rely_on(driver: Driver, stack: LayerStack, task: Task) -> None:
    found = check_runtime(driver, stack, task)
    assert found.ok, found.sentence
    assert set(found.not_checked) <= {"services"}


def test_each_check_says_what_is_wrong(driver: Driver, stack: LayerStack, task: Task, monkeypatch) -> None:
    """Checks that ask for tighter limits than the sandbox has find it wanting."""
    roomy = driver.backend(stack)
    try:
        monkeypatch.setattr(runtime, "LIMITS", replace(LIMITS, output=100, open_files=1, disk=1 << 20, memory=1 << 20))
        for name, fault in {
            "output": "characters of output came through",
            "disk": "2097152 bytes were written where 1048576 are allowed",
            "memory": "3145728 bytes were held where 1048576 are allowed",
            "descriptors": "open files are bounded by '4096'",
        }.items():
            roomy.start()
            assert fault in runtime.CHECKS[name](roomy, task), name
        roomy.start()
        roomy.run_command("rm /usr/bin/sleep /usr/bin/env")
        assert runtime.CHECKS["tools"](roomy, task) == "the image has no env, sleep"
        assert "did not outlive" in runtime.CHECKS["services"](roomy, task)
    finally:
        roomy.close()
