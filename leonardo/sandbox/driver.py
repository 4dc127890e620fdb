"""What a driver offers: layers in and out of its id-mapped world, set-ups with network, sandboxes without.

All layers are unpacked, captured and removed by the driver, inside its user namespace, so that owners above the
caller's own uid survive for root and plain user alike.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from leonardo.sandbox.backend import SandboxBackend

GIB = 1 << 30


@dataclass(frozen=True)
class LayerStack:
    """The read-only part of a sandbox.

    Attributes:
        base: folder of the unpacked base root file system.
        deltas: folders of unpacked deltas, uppermost first.
        environment: variables that every command sees.
        own: files of the uppermost delta that each sandbox gets in its writable layer, so that links to them and
            writing behave as on a plain file system (see :mod:`leonardo.sandbox.ownfiles`); few and small.
    """

    base: Path
    deltas: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    own: tuple[str, ...] = ()


@dataclass(frozen=True)
class Limits:
    """Bounds of one sandbox; sizes in bytes. ``output`` is kept per stream and command, the rest is drained."""

    disk: int = 1 * GIB
    memory: int = 4 * GIB
    processes: int = 512
    open_files: int = 4096
    output: int = 1_000_000


@dataclass(frozen=True)
class SetUpResult:
    """How a set-up script ended. ``log`` is its stdout and stderr, interleaved, head and tail kept when long."""

    exit_code: int
    log: str
    seconds: float
    timed_out: bool = False
    disk_full: bool = False


class Driver(ABC):
    """One way to run sandboxes on this node. A context manager; :meth:`close` ends every sandbox and process of it.

    Methods raise :class:`leonardo.errors.InfrastructureError` where the machine, not the task, is at fault. They may
    be called from several threads.
    """

    name: str
    """``namespaces`` or ``apptainer``."""

    degraded: str = ""
    """Why this driver's sandboxes are less than full (for example one uid only), in words; empty when they are not."""

    one_id: bool = False
    """Whether sandboxes have one user id only, so that owners can neither be set nor kept."""

    @abstractmethod
    def unpack(self, archive: Path, folder: Path) -> None:
        """Unpack a root file system or delta archive into ``folder``, which appears whole or not at all."""

    @abstractmethod
    def set_up(
        self,
        stack: LayerStack,
        script: str,
        archive: Path,
        *,
        timeout: float,
        limits: Limits = Limits(),
        mounts: Mapping[str, Path] | None = None,
        pretended_owners: bool = False,
    ) -> SetUpResult:
        """Run ``script`` (a definition's ``%post``, by ``/bin/sh -e`` unless it has a shebang line) as uid 0 on a
        writable copy of ``stack`` with the host's network, and capture what it left.

        ``mounts`` (path inside -> host file or folder) are visible during the set-up and not captured; the host's
        resolv.conf and certificates are. A file among them is read-only, a folder can be written. ``archive`` is
        written only where the script exits 0: it appears whole or not at all, and holds the upper layer in neutral
        form (see :mod:`leonardo.sandbox.layers`). ``pretended_owners``: changes of owner and of user are answered with
        success and not made, which is how packages can be installed where there is one id only.
        """

    @abstractmethod
    def remove(self, folder: Path) -> None:
        """Remove an unpacked layer; absent is fine."""

    @abstractmethod
    def backend(self, stack: LayerStack, *, timeout: float = 120, limits: Limits = Limits()) -> SandboxBackend:
        """A sandbox on ``stack``, not started. ``timeout`` is a command's default, in seconds."""

    @abstractmethod
    def close(self) -> None:
        """End everything this driver started. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
