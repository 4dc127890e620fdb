"""Fixtures that several test packages share."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leonardo.assets.store import AssetStore
from leonardo.errors import InfrastructureError
from leonardo.sandbox.driver import Driver
from leonardo.sandbox.drivers import open_driver
from leonardo.site import Site, load_site
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files
from tests.rootfs import build_root_archive

_SLOW_SECONDS = 3600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that hangs fails and is named; the slow ones have an hour where they do not say otherwise."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_SLOW_SECONDS))


@pytest.fixture(scope="session")
def tiny_root_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tar of a small root file system (bash, coreutils, find, grep, sed, tar)."""
    return build_root_archive(tmp_path_factory.mktemp("rootfs") / "tiny-root.tar")


@pytest.fixture(scope="session")
def driver() -> Iterator[Driver]:
    """The sandbox driver of this machine; skips, with the reason, where there is none."""
    try:
        opened = open_driver()
    except InfrastructureError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture
def site(tmp_path: Path, tiny_root_archive: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A site whose base image is the tests' own root file system."""
    monkeypatch.delenv("LEONARDO_CACHE", raising=False)
    path = tmp_path / "site.yaml"
    path.write_text(
        f"name: test\ncache: {tmp_path / 'cache'}\nbases:\n  tiny:1:\n    registry: false\n    substitute:\n"
        f"      {{kind: archive, path: {tiny_root_archive}, environment: {{FROM_BASE: '1'}}, reason: a test}}\n"
    )
    return load_site(path)


@pytest.fixture
def store(site: Site, driver: Driver) -> AssetStore:
    """An empty store on the tests' base image."""
    return AssetStore(site.cache / "assets", driver, site, timeout=20)


@pytest.fixture
def make_task() -> Callable[..., Task]:
    """A task with this set-up script."""

    def make(post: str, task_id: str = "t1", image: str = "tiny:1", environment: str = "", **fields: object) -> Task:
        definition = f"Bootstrap: docker\nFrom: {image}\n"
        definition += f"%environment\n{environment}\n" if environment else ""
        definition += f"%post\n{post}\n" if post else ""
        defaults = {"instruction": "Do it.", "tests": verifier_files("#!/bin/bash\n[[ -e /done ]]\n")}
        return Task(id=task_id, definition=definition, **(defaults | fields))

    return make
