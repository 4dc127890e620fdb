"""Prepared states as upstream's sandboxes: what ``backend: prepared`` stands for.

The site is the one that ``LEONARDO_SITE`` names (``desk`` if it names none), its asset store is in the site's cache
(``LEONARDO_CACHE``), its driver is the one that ``LEONARDO_DRIVER`` names (the best that works if it names none).
Layers are unpacked once a node, in ``LEONARDO_NODE_CACHE``, and take at most ``LEONARDO_NODE_BUDGET`` GiB there: those
that no live sandbox stands on go first.
"""

import atexit
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from leonardo.hooks.cores import keep_off_reserved_cores
from leonardo.hooks.paths import RUN

if TYPE_CHECKING:
    from leonardo.assets.store import AssetStore
    from leonardo.sandbox.backend import ExecutionResult, SandboxBackend
    from leonardo.sandbox.driver import Driver

SCHEME = "prepared://"

SITE_VARIABLE = "LEONARDO_SITE"
BUDGET_VARIABLE = "LEONARDO_NODE_BUDGET"

_DRIVERS = "drivers"

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def prepared_backend(
    out_of_memory: type[Exception], *, image: str = "", timeout: float = 120, mem_limit: str = "4g"
) -> "PreparedBackend":
    """A sandbox, not started, on the prepared state ``image`` (``prepared://<digest>``).

    Args:
        out_of_memory: upstream's exception for a sandbox that ran out of memory; ours is raised as that.
        image: the prepared state.
        timeout: a command's default, in seconds.
        mem_limit: memory of the sandbox, as Docker writes it (``4g``, ``512m``).

    Raises:
        InputError: an image or a limit that is none.
    """
    digest_in(image)
    return PreparedBackend(out_of_memory, image, timeout, size_of(mem_limit))


def digest_in(image: str) -> str:
    """The digest in ``prepared://<digest>``. Raises InputError."""
    from leonardo.errors import InputError

    digest = image.removeprefix(SCHEME)
    if not image.startswith(SCHEME) or not re.fullmatch("[0-9a-f]{64}", digest):
        raise InputError(
            f"backend prepared cannot start {image!r}", f"Name a prepared state, {SCHEME}<digest>, as the manifest does"
        )
    return digest


def size_of(text: str) -> int:
    """Bytes of a size as Docker writes it. Raises InputError."""
    from leonardo.errors import InputError

    match = re.fullmatch(r"(\d+)([bkmg]?)", text.strip().lower())
    if not match or not int(match[1]):
        raise InputError(f"{text!r} is no size", "Write for example 4g or 512m")
    return int(match[1]) * _UNITS[match[2]]


class PreparedBackend:
    """Upstream's sandbox interface over one of ours. Its image may be changed before it is started again."""

    def __init__(self, out_of_memory: type[Exception], image: str, timeout: float, memory: int) -> None:
        self._image = image  # upstream's environments assign it between episodes
        self._out_of_memory = out_of_memory
        self._timeout = timeout
        self._memory = memory
        self._sandbox: SandboxBackend | None = None
        self._layers = ExitStack()

    def start(self) -> None:
        """Reset to the prepared state."""
        from leonardo.sandbox.driver import Limits

        self.close()
        node = _node()
        state = self._layers.enter_context(node.store.named.using(digest_in(self._image)))
        try:
            self._sandbox = node.driver.backend(state.stack, timeout=self._timeout, limits=Limits(memory=self._memory))
            self._sandbox.start()
        except BaseException:
            self.close()
            raise

    def run_command(self, command: str, timeout: float | None = None) -> "ExecutionResult":
        """Run a command; see :class:`leonardo.sandbox.backend.SandboxBackend`, here and below."""
        with self._started() as sandbox:
            return sandbox.run_command(command, timeout)

    def write_file(self, path: str, content: str | bytes) -> None:
        """Write a file, making its parent folders."""
        with self._started() as sandbox:
            sandbox.write_file(path, content)

    def read_file(self, path: str, binary: bool = False) -> str | bytes:
        """Read a file."""
        with self._started() as sandbox:
            return sandbox.read_file(path, binary)

    def put_archive(self, root: str, tar_bytes: bytes) -> None:
        """Extract a tar archive below ``root``."""
        with self._started() as sandbox:
            sandbox.put_archive(root, tar_bytes)

    def close(self) -> None:
        """End the sandbox. May be called twice."""
        sandbox, self._sandbox = self._sandbox, None
        try:
            if sandbox is not None:
                sandbox.close()
        finally:
            self._layers.close()

    @contextmanager
    def _started(self) -> "Iterator[SandboxBackend]":
        from leonardo.sandbox.backend import SandboxOOMError

        if self._sandbox is None:
            raise RuntimeError("the sandbox is not started")
        try:
            yield self._sandbox
        except SandboxOOMError as error:
            raise self._out_of_memory(str(error)) from error


@dataclass(frozen=True)
class _Node:
    driver: "Driver"
    store: "AssetStore"


@cache
def _node() -> _Node:
    """This process's driver and store, opened when a sandbox is first started."""
    from leonardo.assets.store import AssetStore
    from leonardo.sandbox.drivers import open_driver
    from leonardo.site import load_site

    keep_off_reserved_cores()
    site = load_site(os.environ.get(SITE_VARIABLE) or "desk")
    budget = float(os.environ.get(BUDGET_VARIABLE) or 0)
    driver = open_driver()
    _note_driver(driver.name)
    atexit.register(driver.close)
    most = int(budget * (1 << 30)) if budget else None
    return _Node(driver, AssetStore(site.cache / "assets", driver, site, most_unpacked=most))


def _note_driver(name: str) -> None:
    """Note in the run's folder which driver this node takes: nodes decide that by themselves."""
    if run := os.environ.get(RUN):
        folder = Path(run, _DRIVERS)
        folder.mkdir(exist_ok=True)
        (folder / f"{name}@{os.uname().nodename}").touch()


def drivers_of(run: Path) -> list[str]:
    """The drivers that the nodes of a run took, by name."""
    return sorted({path.name.partition("@")[0] for path in (run / _DRIVERS).glob("*@*")})
