from collections.abc import Callable
from pathlib import Path

import pytest

from leonardo.assets.store import AssetStore
from leonardo.sandbox.driver import Driver
from leonardo.site import Site, load_site
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files


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
