"""``backend: prepared``: real sandboxes behind upstream's interface."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leonardo.assets.store import AssetStore
from leonardo.errors import InputError
from leonardo.hooks import sandbox
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
