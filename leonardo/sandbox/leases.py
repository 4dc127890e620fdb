"""What a driver has on this node that the kernel would not clean up if the driver's process were killed: folders half
made, containers, cgroups. Written down before it is made, so that a janitor can undo it (see janitor.py).

A lease is a file that its process holds locked; the lock ends with the process, however it ends.
"""

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from leonardo.errors import InfrastructureError

_FIRST_NAMESPACE = 0xEFFFFFFD  # the kernel's number of the user namespace that it begins with
_MOST_DONE = 256  # lines of what is no more, after which the file is written anew


@dataclass(frozen=True)
class Note:
    """One thing: ``kind`` is process (pid), folder (where things whose names hold the lease's id lie) or cgroup.

    ``began`` tells a process from a later one with the same number.
    """

    kind: str
    value: str
    began: str = ""


def folder() -> Path:
    """Where this user's leases are: node-local, for other nodes' processes cannot be seen from here."""
    # not tempfile.gettempdir(), which a process may point elsewhere for a while: others must find the leases
    return Path(os.environ.get("TMPDIR") or "/tmp") / f"leonardo-leases-{os.geteuid()}{_namespace()}"


def _namespace() -> str:
    """Another user namespace's root is not this one's."""
    number = Path("/proc/self/ns/user").stat().st_ino
    return "" if number == _FIRST_NAMESPACE else f"-{number}"


class Lease:
    """One driver's. Several threads may use it. Raises :class:`InfrastructureError` where it cannot be kept."""

    def __init__(self) -> None:
        self.id = os.urandom(6).hex()
        self._lock = threading.Lock()
        self._notes: set[Note] = set()
        self._done = 0
        self._path = folder() / f"{self.id}.jsonl"
        try:
            while True:
                folder().mkdir(mode=0o700, exist_ok=True)
                new = self._path.with_suffix(".new")  # a janitor must not see it before it is locked
                with contextlib.suppress(FileNotFoundError):  # the last of the others has just removed the folder
                    if folder().stat().st_uid != os.geteuid():
                        raise PermissionError(1, "it is another user's", str(folder()))
                    self._descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                    break
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
            new.rename(self._path)
        except OSError as error:
            raise InfrastructureError(f"{folder()} cannot be used: {error.strerror}", "set TMPDIR") from error

    def note_folder(self, place: Path) -> None:
        """From now on names in ``place`` that hold :attr:`id` may be left half made."""
        self._add(Note("folder", str(place.resolve())))

    def note_cgroup(self, path: str) -> None:
        """A cgroup made by this driver."""
        self._add(Note("cgroup", path))

    def note_process(self, process: int) -> Note:
        """A process that does not die with this one."""
        note = Note("process", str(process), began(process))
        self._add(note)
        return note

    def forget(self, note: Note) -> None:
        """It is no more."""
        with self._lock:
            self._notes.discard(note)
            self._done += 1
            if self._done > _MOST_DONE and self._descriptor >= 0:
                self._done = 0
                text = "".join(map(_line, self._notes)).encode()
                with contextlib.suppress(OSError):
                    os.pwrite(self._descriptor, text, 0)
                    os.ftruncate(self._descriptor, len(text))
                    os.lseek(self._descriptor, 0, os.SEEK_END)

    def _add(self, note: Note) -> None:
        with self._lock:
            if note in self._notes or self._descriptor < 0:
                return
            self._notes.add(note)
            with contextlib.suppress(OSError):  # a full disk: then what is left is found by its age
                os.write(self._descriptor, _line(note).encode())

    def close(self) -> None:
        """Everything is gone in order. May be called twice."""
        with self._lock:
            if self._descriptor >= 0:
                self._path.unlink(missing_ok=True)
                os.close(self._descriptor)
                self._descriptor = -1
                with contextlib.suppress(OSError):  # the last one takes the folder along
                    folder().rmdir()


def _line(note: Note) -> str:
    return json.dumps(vars(note)) + "\n"


def began(process: int) -> str:
    """When a process began, on which boot; ``""`` for one that is no more."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return f"{fields[19]} {Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    except OSError:
        return ""


@dataclass(frozen=True)
class Left:
    """A lease whose process has ended without closing it."""

    id: str
    path: Path
    notes: tuple[Note, ...]


@contextlib.contextmanager
def abandoned() -> Iterator[list[Left]]:
    """The leases whose processes are no more, locked for the caller, who unlinks those that are done with."""
    found, descriptors = [], []
    try:
        for path in sorted(folder().glob("*.jsonl")) if folder().is_dir() else []:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            descriptors.append(descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue  # its process lives, or another janitor is at it
            found.append(Left(path.stem, path, tuple(_notes(path))))
        yield found
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _notes(path: Path) -> Iterator[Note]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):  # a line cut short by the crash
            yield Note(**json.loads(line))
