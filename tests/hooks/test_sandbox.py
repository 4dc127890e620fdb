"""``backend: prepared``: real sandboxes behind upstream's interface."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leonardo.assets.store import AssetStore
from leonardo.errors import InputError
from leonardo.hooks import sandbox
from leonardo.hooks.cores import keep_off_reserved_cores
from leonardo.sandbox.backend import SandboxOOMError
from leonardo.site import Site
from leonardo.tasks.task import Task


class OutOfMemory(RuntimeError):
    """Stands for upstream's exception."""


@pytest.fixture
def images(
    site: Site, store: AssetStore, make_task: Callable[..., Task], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, str]]:
    """Two prepared states, as images; the hooks find them through the environment."""
    tasks = [make_task("echo first > /here", "t1"), make_task("echo second > /here", "t2", environment="export A=b")]
    store.build(tasks)
    monkeypatch.setenv(sandbox.SITE_VARIABLE, str(tmp_path / "site.yaml"))
    monkeypatch.setenv("LEONARDO_CACHE", str(site.cache))
    sandbox._node.cache_clear()
    yield tuple(store.prepared(task).name for task in tasks)
    sandbox._node().driver.close()
    sandbox._node.cache_clear()


def test_episodes_of_two_prepared_states_in_one_backend(images: tuple[str, str]) -> None:
    backend = sandbox.prepared_backend(OutOfMemory, image=images[0], timeout=20, mem_limit="1g")
    backend.start()
    assert backend.run_command("cat /here; rm /here").stdout == "first\n"
    backend.write_file("/notes/a", "text")
    assert backend.read_file("/notes/a") == "text"
    backend.close()
    backend._image = images[1]  # as upstream's environments do between episodes
    backend.start()
    result = backend.run_command("cat /here; echo $A; ls /notes")
    assert (result.stdout, result.exit_code) == ("second\nb\n", 2)
    backend._image = images[0]
    backend.start()
    assert backend.run_command("cat /here").stdout == "first\n"
    backend.close()
    backend.close()


def test_out_of_memory_is_upstreams_exception(images: tuple[str, str]) -> None:
    backend = sandbox.prepared_backend(OutOfMemory, image=images[0])

    class Full:
        def run_command(self, command: str, timeout: float | None = None) -> None:
            raise SandboxOOMError("killed")

        def close(self) -> None: ...

    backend._sandbox = Full()  # a sandbox that really fills memory takes a cgroup, which not every machine grants
    with pytest.raises(OutOfMemory, match="killed"):
        backend.run_command("true")


def test_command_before_start_is_refused() -> None:
    with pytest.raises(RuntimeError, match="not started"):
        sandbox.prepared_backend(OutOfMemory, image=f"prepared://{'0' * 64}").run_command("true")


def test_state_that_was_not_built_is_named(images: tuple[str, str]) -> None:
    backend = sandbox.prepared_backend(OutOfMemory, image=f"prepared://{'0' * 64}")
    with pytest.raises(InputError, match="no prepared state 0000"):
        backend.start()


@pytest.mark.parametrize("image", ["", "ubuntu:22.04", "prepared://", "prepared://../../x"])
def test_other_images_are_refused(image: str) -> None:
    with pytest.raises(InputError, match="cannot start"):
        sandbox.prepared_backend(OutOfMemory, image=image)


@pytest.mark.parametrize(("text", "size"), [("4g", 4 << 30), ("512m", 512 << 20), ("1024", 1024), ("2K", 2048)])
def test_sizes(text: str, size: int) -> None:
    assert sandbox.size_of(text) == size


@pytest.mark.parametrize("text", ["", "0", "4 gigabytes", "-1g"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(InputError, match="is no size"):
        sandbox.size_of(text)


def test_eviction_spares_a_live_sandbox(
    images: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a budget that nothing fits in, what a sandbox stands on stays, and goes when it ends."""
    monkeypatch.setenv(sandbox.BUDGET_VARIABLE, "0.000001")
    monkeypatch.setenv("LEONARDO_NODE_CACHE", str(tmp_path / "node"))
    sandbox._node.cache_clear()
    first = sandbox.prepared_backend(OutOfMemory, image=images[0])
    second = sandbox.prepared_backend(OutOfMemory, image=images[1])
    first.start()
    second.start()
    assert first.run_command("cat /here; ls /usr/bin | wc -l").stdout.startswith("first\n")
    assert len(sandbox._node().store.cache.layers()) == 3  # the base and a layer of each
    second.close()
    first.close()
    monkeypatch.setenv("LEONARDO_NODE_CACHE", str(tmp_path / "other"))
    sandbox._node().driver.close()
    sandbox._node.cache_clear()
    first.start()
    first.close()
    second.start()  # what the first stood on goes now
    cache = sandbox._node().store.cache
    assert (len(cache.layers()), cache.evictions) == (2, 1)
    assert second.run_command("cat /here").stdout == "second\n"
    second.close()


def test_an_episode_needs_nothing_of_the_shared_store(
    images: tuple[str, str], site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once a state is unpacked on the node, resets go on while the store is not there: no operation on it is needed."""
    monkeypatch.setenv("LEONARDO_NODE_CACHE", str(tmp_path / "node"))
    sandbox._node.cache_clear()
    backend = sandbox.prepared_backend(OutOfMemory, image=images[0])
    backend.start()
    store = sandbox._node().store.root
    store.rename(store.with_name("away"))
    try:
        for _ in range(3):
            backend.run_command("rm /here")
            backend.start()
            assert backend.run_command("cat /here").stdout == "first\n"
    finally:
        store.with_name("away").rename(store)
    backend.close()


def test_sandboxes_stay_off_reserved_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first cores are kept; one is always left."""
    cores = os.sched_getaffinity(0)
    try:
        monkeypatch.setenv("LEONARDO_RESERVED_CORES", "1")
        keep_off_reserved_cores()
        left = sorted(cores)[1:] or sorted(cores)
        assert sorted(os.sched_getaffinity(0)) == left
        said = subprocess.check_output([sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)))"])
        assert said.decode().strip() == str(left)
        os.sched_setaffinity(0, cores)
        monkeypatch.setenv("LEONARDO_RESERVED_CORES", "1000")
        keep_off_reserved_cores()
        assert len(os.sched_getaffinity(0)) == 1
    finally:
        os.sched_setaffinity(0, cores)
