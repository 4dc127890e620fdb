"""Every test of a sandbox runs on every driver that the machine allows: ``make test-sandbox``.

That takes half an hour, and less for some of them (``make test-sandbox DRIVERS="apptainer namespaces-fuse"``), so that
without it the default driver runs them all, and the one that needs the fewest features of the kernel the conformance
suite.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leonardo.errors import InfrastructureError
from leonardo.sandbox import drivers
from leonardo.sandbox.apptainer import ApptainerDriver
from leonardo.sandbox.apptainerholder import ApptainerHolderDriver
from leonardo.sandbox.backend import SandboxBackend
from leonardo.sandbox.driver import Driver, LayerStack, Limits
from leonardo.sandbox.namespaces import NamespacesDriver

MIB = 1 << 20
SMALL = Limits(disk=64 * MIB, memory=512 * MIB, processes=64, output=200_000)


CANDIDATES = {candidate.label: candidate for candidate in drivers.CANDIDATES}


CHOSEN = os.environ.get("LEONARDO_TEST_DRIVERS", "").split()
"""Labels of drivers, or ``all``."""
DEFAULT, FALLBACK = "namespaces", "apptainer"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave to ``make test-sandbox`` what is not for every day."""

    def wanted(item: pytest.Item) -> bool:
        driver = getattr(getattr(item, "callspec", None), "params", {}).get("driver", DEFAULT)
        if CHOSEN:
            return "all" in CHOSEN or driver in CHOSEN
        return driver == DEFAULT or (driver == FALLBACK and item.path.stem == "test_conformance")

    left_out = [item for item in items if not wanted(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if wanted(item)]


def another(driver: NamespacesDriver) -> NamespacesDriver:
    """A second driver like ``driver``."""
    kind = type(driver)
    return kind() if kind in (ApptainerDriver, ApptainerHolderDriver) else kind(driver._identities)


@pytest.fixture(scope="session", params=CANDIDATES)
def driver(request: pytest.FixtureRequest) -> Iterator[NamespacesDriver]:
    """Each driver that works on this machine, in turn."""
    try:
        opened = CANDIDATES[request.param].opened()
    except InfrastructureError as error:
        pytest.skip(f"{request.param}: {error}")
    with opened:
        yield opened


@pytest.fixture(scope="session")
def folder(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for layers; what is in it is removed by the driver, whose ids own it."""
    place = tmp_path_factory.mktemp("layers")
    yield place
    for layer in place.iterdir():
        if layer.is_dir():
            driver.remove(layer)


@pytest.fixture(scope="session")
def stack(driver: Driver, folder: Path, tiny_root_archive: Path) -> LayerStack:
    """The tiny root, unpacked, with one variable."""
    base = folder / "base"
    driver.unpack(tiny_root_archive, base)
    return LayerStack(base, environment={"FROM_THE_STACK": "yes"})


@pytest.fixture
def sandbox(driver: Driver, stack: LayerStack) -> Iterator[SandboxBackend]:
    """A started sandbox with small limits."""
    backend = driver.backend(stack, timeout=20, limits=SMALL)
    backend.start()
    yield backend
    backend.close()


@pytest.fixture
def marker() -> str:
    """A number of seconds to sleep that no other process on this machine sleeps."""
    return f"3600.{uuid.uuid4().int % 10**9:09d}"


@pytest.fixture
def processes_with() -> Callable[[str], list[int]]:
    """Host processes whose command line has a text in it."""

    def find(text: str) -> list[int]:
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    line = (folder / "cmdline").read_bytes()
                except OSError:
                    continue
                if text.encode() in line and b"pytest" not in line:
                    found.append(int(folder.name))
        return found

    return find


@pytest.fixture
def gone(processes_with: Callable[[str], list[int]]) -> Callable[..., bool]:
    """Whether within some seconds no host process has a text in its command line any more."""

    def wait(text: str, seconds: float = 2) -> bool:
        end = time.monotonic() + seconds
        while processes_with(text):
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return True

    return wait
