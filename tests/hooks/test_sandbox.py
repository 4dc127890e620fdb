"""``backend: prepared``: real sandboxes behind upstream's interface."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from leonardo.assets.store import AssetStore
from leonardo.errors import InputError
from leonardo.hooks import sandbox
from leonardo.hooks.cores import keep_off_reserved_cores
from leonardo.jobs.unpacked import read_unpacked
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


def rows_of(images: Sequence[str], path: Path) -> Path:
    """A data set with these images, as upstream's trainer has it."""
    rows = [{"env_config": {"env_configs": [{"task_id": f"t{n}", "image": image}]}} for n, image in enumerate(images)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


EPISODES = """
import sys
from leonardo.hooks.sandbox import prepared_backend
for image in sys.argv[1:]:
    backend = prepared_backend(MemoryError, image=image)
    for _ in range(2):
        backend.start()
        print(backend.run_command("cat /here; rm /here").stdout.strip())
    backend.close()
"""


def operations_on(store: Path, *command: str) -> tuple[list[str], str]:
    """Run a command; every system call of it, and of all its children, that names something in ``store`` or lists it,
    as strace saw it, and its output. Nothing that asks the file system for a name can be missed: the kernel says it.
    """
    if shutil.which("strace") is None or os.geteuid() != 0:
        pytest.skip("it takes strace, and root: what a plain user traces is not lent newuidmap's rights")
    with tempfile.TemporaryDirectory() as folder:  # a file a process, so that no call is cut in two by another's
        options = ("-ff", "-qq", "-y", "-s", "4096", "-e", "trace=%file,getdents64", "-o", f"{folder}/trace")
        done = subprocess.run(["strace", *options, *command], capture_output=True, text=True)
        if "ptrace" in done.stderr and "not permitted" in done.stderr:
            pytest.skip("strace may not trace here")
        assert done.returncode == 0, done.stderr
        lines = [line for path in sorted(Path(folder).iterdir()) for line in path.read_text().splitlines()]
    # a look at a file that is open asks for no name; the last listing of a folder says that there is no more; and a
    # program's arguments are not looked at by the kernel
    others = r'newfstatat\(\d+<[^>]*>, ""|getdents64\(.*\) += 0$|execve\("[^"]*", \['
    calls = [re.sub(r'^(execve\("[^"]*"), \[.*', r"\1", line) for line in lines if "resumed>" not in line]
    return [call for call in calls if str(store) in call and not re.match(others, call)], done.stdout


def test_staged_states_need_nothing_of_the_store(
    images: tuple[str, str], site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unpacked ahead by a process of its own, with as few operations as it says; then new processes start sandboxes
    while the store is not there.
    """
    monkeypatch.setenv("LEONARDO_NODE_CACHE", str(tmp_path / "node"))
    store = site.cache / "assets"
    rows = rows_of([images[0], images[1], images[0]], store / "rows.jsonl")
    (tmp_path / "run").mkdir()
    command = (sys.executable, "-m", "leonardo.jobs.unpack", str(tmp_path / "run"), str(rows))
    calls, _ = operations_on(store, *command)
    (staged,) = read_unpacked(tmp_path / "run").values()
    assert (staged["states"], staged["layers"], staged["new"], staged["reason"]) == (2, 3, 3, "")
    assert staged["operations"] == len(calls) == 6, calls  # rows, manifest, list (2), one catalogue, one base
    again, _ = operations_on(store, *command)
    assert read_unpacked(tmp_path / "run").popitem()[1]["new"] == 0
    assert len(again) == 2, again  # rows, manifest
    used, said = operations_on(store, sys.executable, "-c", EPISODES, *images)
    assert said.split() == ["first", "first", "second", "second"]
    assert used == []
    monkeypatch.setenv("LEONARDO_NODE_CACHE", str(tmp_path / "other"))
    late, _ = operations_on(store, sys.executable, "-c", EPISODES, images[0])
    later, _ = operations_on(store, sys.executable, "-c", EPISODES, *images)
    assert 0 < len(late) <= 50 and 0 < len(later) <= 50  # a layer that was not unpacked ahead, in a process that is new
    monkeypatch.setenv("LEONARDO_NODE_CACHE", str(tmp_path / "node"))
    store.rename(store.with_name("away"))
    try:
        said = subprocess.run([sys.executable, "-c", EPISODES, *images], capture_output=True, text=True, check=True)
        assert said.stdout.split() == ["first", "first", "second", "second"]
        assert not store.exists()
    finally:
        store.with_name("away").rename(store)


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
