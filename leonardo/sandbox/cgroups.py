"""Control groups for sandboxes: exact bounds on memory and processes, where this process may make groups (version 1 or
2). Elsewhere resource limits and the watchdog do what they can.

A group's bound on memory is that of the processes and of the writable layer together, since the layer is in memory; it
also holds what no process owns: files in memory, pipes, sockets, the kernel's own.
"""

import contextlib
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

PREFIX = "leonardo-"
_STALE = 60.0  # seconds; younger groups of ended processes may be another driver's that is only starting
_END_PATIENCE = 2.0


@dataclass(frozen=True)
class _Hierarchy:
    """Where groups are made, and the names of a controller's files."""

    folder: Path
    bounds: dict[str, str]  # "memory" or "processes" -> file that takes the bound
    events: dict[str, tuple[str, str]]  # "memory" or "processes" -> file and key of the count of refusals


_VERSION_1 = {
    "memory": ("memory.limit_in_bytes", "memory.oom_control", "oom_kill"),
    "pids": ("pids.max", "pids.events", "max"),
}
_VERSION_2 = {"memory": ("memory.max", "memory.events", "oom_kill"), "pids": ("pids.max", "pids.events", "max")}
_WORDS = {"memory": "memory", "pids": "processes"}


class Group:
    """One sandbox's groups. :attr:`descriptors` let a process that writes ``0`` to each join."""

    def __init__(self, hierarchies: list[_Hierarchy], name: str, bounds: dict[str, int]) -> None:
        self._folders: list[Path] = []
        self._events: dict[str, tuple[int, str]] = {}  # word -> file that counts, and the count's key
        self._seen: dict[str, int] = {}
        self._lock = threading.Lock()
        self.descriptors: list[int] = []
        try:
            for hierarchy in hierarchies:
                folder = hierarchy.folder / name
                folder.mkdir()
                self._folders.append(folder)
                for word, file in hierarchy.bounds.items():
                    (folder / file).write_text(str(bounds[word]))
                for word, (file, key) in hierarchy.events.items():
                    self._events[word] = os.open(folder / file, os.O_RDONLY | os.O_CLOEXEC), key
                self.descriptors.append(os.open(folder / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            self.close_descriptors()
            self.remove()
            raise

    def close_descriptors(self) -> None:
        """Nobody else is to join."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    def new_events(self) -> set[str]:
        """Which of ``memory`` and ``processes`` the kernel has refused since this was last asked."""
        found = set()
        with self._lock:
            for word, (descriptor, key) in self._events.items():
                count = _count(os.pread(descriptor, 4096, 0).decode(), key)
                if count > self._seen.get(word, 0):
                    found.add(word)
                    self._seen[word] = count
        return found

    def remove(self) -> None:
        """Remove the groups, whose processes have ended or are about to."""
        with self._lock:
            for descriptor, _ in self._events.values():
                os.close(descriptor)
            self._events = {}
        end = time.monotonic() + _END_PATIENCE
        for folder in self._folders:
            while True:
                try:
                    folder.rmdir()
                except FileNotFoundError:
                    break
                except OSError:
                    if time.monotonic() > end:
                        break
                    time.sleep(0.002)
                else:
                    break


class Groups:
    """Makes the groups of one driver. ``bounded`` names what they bound: of ``memory``, ``processes``."""

    def __init__(self, hierarchies: list[_Hierarchy]) -> None:
        self._hierarchies = hierarchies
        self.bounded = frozenset(word for hierarchy in hierarchies for word in hierarchy.bounds)

    def make(self, *, memory: int, processes: int) -> Group:
        """Groups with these bounds, in bytes and processes. Raises OSError."""
        name = f"{PREFIX}{os.getpid()}-{os.urandom(6).hex()}"
        return Group(self._hierarchies, name, {"memory": memory, "processes": processes})


def find() -> Groups | None:
    """What this process may make groups in; None where it may not. Removes what ended processes left there."""
    usable = []
    for hierarchy in _hierarchies(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text()):
        try:
            probe = Group(
                [hierarchy], f"{PREFIX}{os.getpid()}-{os.urandom(6).hex()}", dict.fromkeys(_WORDS.values(), 1)
            )
        except OSError:
            continue
        probe.close_descriptors()
        probe.remove()
        _sweep(hierarchy.folder)
        usable.append(hierarchy)
    return Groups(usable) if usable else None


def own_groups() -> list[str]:
    """The groups that this process has made and that are there."""
    try:
        hierarchies = _hierarchies(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    except OSError:
        return []
    return [str(made) for each in hierarchies for made in each.folder.glob(f"{PREFIX}{os.getpid()}-*")]


def _hierarchies(memberships: str, mounts: str) -> list[_Hierarchy]:
    """From the texts of /proc/self/cgroup and mountinfo: where memory and processes can be bounded."""
    found: list[_Hierarchy] = []
    for line in memberships.splitlines():
        _, controllers, path = line.split(":", 2)
        version_2 = not controllers
        wanted = [name for name in _WORDS if version_2 or name in controllers.split(",")]
        folder = _mounted(mounts, path, controllers) if wanted else None
        if folder is None:
            continue
        if version_2:
            folder, wanted = _delegated(folder, wanted)
        names = _VERSION_2 if version_2 else _VERSION_1
        if wanted:
            bounds = {_WORDS[name]: names[name][0] for name in wanted}
            found.append(_Hierarchy(folder, bounds, {_WORDS[name]: names[name][1:] for name in wanted}))
    return found


def _mounted(mounts: str, path: str, controllers: str) -> Path | None:
    """The folder of the group ``path`` of a hierarchy, if it is mounted."""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        right = kind == "cgroup" and set(controllers.split(",")) <= set(options.split(",")) if controllers else False
        if right or (not controllers and kind == "cgroup2"):
            root, point = before.split()[3:5]
            if path == root or path.startswith(root.rstrip("/") + "/"):
                return Path(point, path[len(root) :].lstrip("/"))
    return None


def _delegated(folder: Path, wanted: list[str]) -> tuple[Path, list[str]]:
    """Version 2: the nearest group at or above ours whose children have controllers, and which of ``wanted``."""
    for candidate in (folder, *folder.parents):
        try:
            given = (candidate / "cgroup.subtree_control").read_text().split()
        except OSError:
            break
        if available := [name for name in wanted if name in given]:
            return candidate, available
    return folder, []


def _sweep(folder: Path) -> None:
    for left in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError, ValueError):
            process = int(left.name.removeprefix(PREFIX).split("-")[0])
            if not Path(f"/proc/{process}").exists() and time.time() - left.stat().st_mtime > _STALE:
                left.rmdir()


def _count(text: str, key: str) -> int:
    return next((int(line.split()[1]) for line in text.splitlines() if line.split()[0] == key), 0)
