"""What sandboxes leave behind: processes, mounts, files, ports, cgroups of this process, before compared with after."""

import ctypes
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from leonardo.sandbox.cgroups import own_groups

_SET_CHILD_SUBREAPER = 36  # prctl(2): what loses its parent below us becomes our child instead of init's


@dataclass(frozen=True)
class Belongings:
    """Processes (with their start times, since numbers come again), mounts, temporary files, ports and cgroups."""

    processes: frozenset[str]
    mounts: frozenset[str]
    files: frozenset[str]
    ports: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def since(self, earlier: "Belongings") -> list[str]:
        """What is there now and was not ``earlier``."""
        return [
            *sorted(f"process {entry}" for entry in self.processes - earlier.processes),
            *sorted(f"mount {entry}" for entry in self.mounts - earlier.mounts),
            *sorted(f"file {entry}" for entry in self.files - earlier.files),
            *sorted(f"port {entry}" for entry in self.ports - earlier.ports),
            *sorted(f"cgroup {entry}" for entry in self.groups - earlier.groups),
        ]


def become_subreaper() -> None:
    """From now on a process that escapes from a driver of ours shows as our child."""
    ctypes.CDLL(None, use_errno=True).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def own_temporary_folder() -> Iterator[Path]:
    """Let this process put its temporary files where no other does, so that what is left of them can be told."""
    with tempfile.TemporaryDirectory(prefix="leonardo-") as folder:
        before, tempfile.tempdir = tempfile.tempdir, folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = before


def belongings(root: Path) -> Belongings:
    """What this process has: everything below it in the process tree, its temporary files
    (:func:`own_temporary_folder`), what is unfinished (hidden) below ``root``, mounts in any of these places, ports on
    which any of its processes listens, and cgroups that it made."""
    places = [root.resolve(), *([Path(tempfile.tempdir).resolve()] if tempfile.tempdir else [])]
    files = {str(path) for path in root.glob("*/.*")}
    if tempfile.tempdir:
        files |= {str(path) for path in Path(tempfile.tempdir).iterdir() if path.name.startswith("leonardo")}
    processes, mounts = frozenset(_descendants()), frozenset(_mounts(places))
    return Belongings(processes, mounts, frozenset(files), frozenset(_ports()), frozenset(own_groups()))


def left_over(before: Belongings, root: Path, patience: float = 5.0) -> list[str]:
    """What is there that was not ``before``; the kernel is given ``patience`` seconds to end what is ending."""
    deadline = time.monotonic() + patience
    while True:
        found = belongings(root).since(before)
        if not found or time.monotonic() >= deadline:
            return found
        time.sleep(0.05)


def _mounts(places: list[Path]) -> set[str]:
    # the mount's number tells a new one from an old one in its place
    mounts = [line.split()[:5] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return {" ".join(fields) for fields in mounts if any(Path(fields[4]).is_relative_to(place) for place in places)}


def _ports() -> set[str]:
    """Where this process and those below it listen, each in its own network."""
    found = set()
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error, OSError):
            for connection in process.net_connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN or connection.type == socket.SOCK_DGRAM:
                    found.add(f"{connection.laddr.ip}:{connection.laddr.port}" if connection.laddr else "unbound")
    return found


def _descendants() -> set[str]:
    children: dict[int, list[tuple[int, str]]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                head, _, rest = (folder / "stat").read_text().rpartition(")")
                fields = rest.split()
                state, parent, started = fields[0], int(fields[1]), fields[19]
                if state not in "ZX":
                    name = head.partition("(")[2]
                    children.setdefault(parent, []).append((int(folder.name), f"{folder.name} {name} {started}"))
    found: set[str] = set()
    waiting = [os.getpid()]
    while waiting:
        for number, description in children.get(waiting.pop(), []):
            found.add(description)
            waiting.append(number)
    return found
