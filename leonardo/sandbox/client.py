"""The driver's side of a holder: starts the helper processes, sends requests, tells why they ended."""

import contextlib
import itertools
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leonardo.errors import FailureClass, InfrastructureError
from leonardo.sandbox import wire
from leonardo.sandbox.identities import Identities

START_PATIENCE = 30.0
_EXITING = 4  # PF_EXITING among the flags in /proc/PID/stat
TOOL_PATIENCE = 3600.0  # unpacking gigabytes from a slow disk
_BOOT = "import sys; sys.path.append({root!r}); from leonardo.sandbox.guard import main; main()"
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


class HolderGoneError(Exception):
    """The holder has ended; the text says how."""


@dataclass(frozen=True)
class Join:
    """Namespaces (``user``, ``pid``, ``mnt``) of a process for the guard to enter, in this order.

    In a user namespace that was entered the ids are mapped already; the holder then makes none of its own.
    ``image``: the holder makes the container's root a layer and the host's files, which the container shows at
    :data:`leonardo.sandbox.mounts.HOST`, its own root. ``servers``: processes that serve the container's root (FUSE);
    if one ends or hangs, the holder is ended.
    """

    process: int
    kinds: tuple[str, ...]
    image: bool = False
    servers: tuple[int, ...] = ()


LayerReference = dict[str, str]


def layer_reference(path: Path) -> LayerReference:
    """A file or folder as requests name it: its path, and a key that another one at the same path does not share."""
    try:
        status = path.stat()
    except OSError as error:
        raise InfrastructureError(f"layer {path} cannot be used: {error.strerror}") from error
    return {"path": str(path.resolve()), "key": f"{status.st_dev}:{status.st_ino}"}


class HolderClient:
    """One guard and one holder. Raises :class:`InfrastructureError` in one line where they cannot be started.

    Args:
        identities: the ids of the holder's user namespace.
        join: a container whose namespaces the guard enters first.
    """

    def __init__(self, identities: Identities, *, join: Join | None = None) -> None:
        self.identities = identities
        self._lock = threading.Lock()
        self._servers = _opened(join.servers if join else ())
        self._numbers = itertools.count(1)
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the client
        self._control, theirs = socket.socketpair()
        lifeline_read, self._lifeline = os.pipe2(os.O_CLOEXEC)
        settings = {
            "maps": {} if join and "user" in join.kinds else {"uid": identities.users, "gid": identities.groups},
            "programs": identities.programs,
            "single": identities.single,
            # a holder that is not the caller on the host may not reach the caller's folders
            "opens": os.geteuid() == 0 and identities.root[0] != 0,
            "driver_process": os.getpid(),
            "image": bool(join and join.image),
            "servers": list(join.servers) if join else [],
            "join": {"process": join.process, "kinds": join.kinds} if join else {"process": 0, "kinds": []},
        }
        package_root = str(Path(__file__).resolve().parents[2])
        command = [sys.executable, "-I", "-S", "-B", "-c", _BOOT.format(root=package_root)]
        try:
            self._guard = subprocess.Popen(
                [*command, str(theirs.fileno()), str(lifeline_read), json.dumps(settings)],
                pass_fds=[theirs.fileno(), lifeline_read],
                env=_ENVIRONMENT,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._complaints,
                start_new_session=True,  # a terminal's Ctrl-C is for the caller, who then closes us
            )
        finally:
            theirs.close()
            os.close(lifeline_read)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        self._control.settimeout(START_PATIENCE)
        try:
            header = wire.receive(self._control).header
        except (EOFError, OSError):
            header = {"error": self.why_ended()}
        if "error" in header:
            self.close()
            raise InfrastructureError(in_words(header), failure=FailureClass.KERNEL_FEATURE)

    @property
    def alive(self) -> bool:
        """Whether the helper processes run."""
        return self._guard.poll() is None

    @property
    def sound(self) -> bool:
        """Whether what serves its files still runs (see :class:`Join`)."""
        return not any(map(_is_ending, self._servers.items()))

    def new_id(self) -> str:
        """A name for a sandbox."""
        return str(next(self._numbers))

    def post(self, header: dict[str, Any], descriptors: Sequence[int]) -> None:
        """Send a request whose answer comes over the last of ``descriptors``."""
        try:
            with self._lock:
                wire.send(self._control, header, descriptors=descriptors)
        except OSError as error:
            raise HolderGoneError(self.why_ended()) from error

    def request(
        self, header: dict[str, Any], descriptors: Sequence[int] = (), *, patience: float = START_PATIENCE
    ) -> dict[str, Any]:
        """A request and its answer."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                self.post(header, [*descriptors, theirs.fileno()])
            ours.settimeout(patience)
            try:
                return wire.receive(ours).header
            except TimeoutError:
                raise InfrastructureError(f"the sandbox holder did not answer for {patience:.0f} s") from None
            except (EOFError, OSError) as error:
                raise HolderGoneError(self.why_ended()) from error

    def why_ended(self) -> str:
        """How the helper processes ended, in words."""
        try:
            code = self._guard.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "the sandbox holder closed its connection"
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace").strip().splitlines()
        how = f"killed by signal {-code}" if code < 0 else f"killed by signal {code - 128}" if code > 128 else ""
        return f"the sandbox holder ended ({how or f'exit code {code}'})" + (f": {said[-1]}" if said else "")

    def close(self) -> None:
        """End the helper processes and with them every sandbox of theirs."""
        with self._lock:
            with contextlib.suppress(OSError):
                self._control.shutdown(socket.SHUT_RDWR)  # a process that the caller forked may hold it open, too
            self._control.close()
            if self._lifeline is not None:
                os.close(self._lifeline)
                self._lifeline = None
        try:
            self._guard.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._guard.kill()  # the holder has the guard's death as its own
            self._guard.wait()
        while self._servers:
            os.close(self._servers.popitem()[1])


def _opened(processes: Sequence[int]) -> dict[int, int]:
    handles = {}
    for process in processes:
        with contextlib.suppress(OSError):  # an old kernel, or it has ended
            handles[process] = os.pidfd_open(process)
    return handles


def _is_ending(server: tuple[int, int]) -> bool:
    """Whether a process has ended or begun to end: its files fail before the kernel tells that it has ended."""
    process, handle = server
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(int(fields[6]) & _EXITING or poll.poll(0))


def in_words(header: Mapping[str, Any]) -> str:
    """An error from the holder, with what to do where the kernel's own words mislead."""
    number, text = header.get("errno"), header["error"]
    if number == 28 and "clone" in text:
        return "the kernel allows no more user namespaces (see /proc/sys/user/max_user_namespaces)"
    if number == 1 and "clone" in text:
        return "the kernel or a security module forbids user namespaces here (clone: Operation not permitted)"
    if number == 1 and "mount proc" in text:
        return "the container that this runs in hides parts of /proc, so a sandbox cannot have its own"
    if number == 22 and "mount overlay" in text:
        return f"{text} (a kernel before 5.11 has no userxattr; or a layer is on a file system that cannot be one)"
    return text
