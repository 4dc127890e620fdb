"""Fixtures that several test packages share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from leonardo.errors import InfrastructureError
from leonardo.sandbox.driver import Driver
from leonardo.sandbox.drivers import open_driver
from tests.rootfs import build_root_archive


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
