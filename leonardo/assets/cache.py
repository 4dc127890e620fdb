"""Unpacked layers of a node, in bounded space: the least recently used go first, and never one that is in use.

Below the cache's folder: ``<digest>/`` is a layer, ``.uses/<digest>`` says in its text how many bytes it takes and how
many entries it has, by its time when it was last used, and by a shared lock on it that it is in use, by whichever
process. A process that is killed holds no lock. The text is written when a layer is whole and taken back before it is
removed, and a process counts a layer's entries before it first uses it: a layer that was removed in part, by whomever,
is unpacked again.
"""

import fcntl
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from leonardo.holding import still_at, taken

Unpack = Callable[[Path], None]


class LayerCache:
    """Safe to use from several threads and processes.

    Args:
        folder: made if absent; on a local disk.
        remove: removes an unpacked layer.
        most_bytes: how much unused layers may take together with those in use; None for no bound.
    """

    def __init__(self, folder: Path, remove: Callable[[Path], None], most_bytes: int | None = None) -> None:
        self._folder = folder
        self._remove = remove
        self._most_bytes = most_bytes
        self.hits = 0
        self.misses = 0
        self.evictions = 0
        self._counted: set[str] = set()
        self._lock = threading.Lock()
        self._held: dict[str, tuple[int, TextIO]] = {}

    @contextmanager
    def using(self, digest: str, unpack: Unpack) -> Iterator[Path]:
        """The layer's folder, which stays during the block. ``unpack`` makes the folder where it is missing."""
        stream = self._take(digest, unpack)
        with self._lock:  # one open file for all of this process that use the layer
            users, held = self._held.get(digest, (0, stream))
            if users:
                stream.close()
            self._held[digest] = users + 1, held
        try:
            yield self._folder / digest
        finally:
            with self._lock:
                users, held = self._held.pop(digest)
                if users > 1:
                    self._held[digest] = users - 1, held
                else:
                    held.close()

    def get(self, digest: str, unpack: Unpack) -> Path:
        """:meth:`using`, for whoever cannot say how long: the cache may remove it any time, if it has a bound."""
        self._take(digest, unpack).close()
        return self._folder / digest

    def layers(self) -> dict[str, int]:
        """Digest -> bytes of what is unpacked; 0 where a layer is not whole."""
        names = [path.name for path in self._folder.glob("*") if not path.name.startswith(".")]
        return {name: self.size(name) for name in names}

    def size(self, digest: str) -> int:
        """Bytes of an unpacked layer; 0 where it is not there, or not whole."""
        return (_noted(self._folder / ".uses" / digest) or (0,))[0]

    def remove(self, digest: str) -> bool:
        """Remove a layer unless it is in use. Returns whether it is gone."""
        (self._folder / ".uses").mkdir(parents=True, exist_ok=True)
        (self._folder / ".uses" / digest).touch()
        return self._evict_one(self._folder / ".uses" / digest)

    def _take(self, digest: str, unpack: Unpack) -> TextIO:
        uses, layer = self._folder / ".uses", self._folder / digest
        uses.mkdir(parents=True, exist_ok=True)
        missed = False
        while True:
            stream = (uses / digest).open("a+")
            try:
                fcntl.flock(stream, fcntl.LOCK_SH)
                if still_at(stream, uses / digest):
                    if self._is_whole(layer, stream):
                        now = time.time_ns()  # the kernel's own notion of now has steps of milliseconds
                        os.utime(stream.fileno(), ns=(now, now))
                        break
                    # not a lock that is waited for: another may make the layer and use it for as long as it likes
                    if _lock_alone(stream) and still_at(stream, uses / digest) and not self._is_whole(layer, stream):
                        missed = True
                        self._make(layer, unpack, stream)
            except BaseException:
                stream.close()
                raise
            stream.close()  # once more, since it may have been made or removed before the lock was ours
        with self._lock:
            self.misses += missed
            self.hits += not missed
        if missed:
            self._evict()
        return stream

    def _make(self, layer: Path, unpack: Unpack, stream: TextIO) -> None:
        stream.truncate(0)
        if layer.exists():
            self._remove(layer)
        unpack(layer)
        entries, size = _measure(layer)
        stream.write(f"{size} {entries} {os.getuid()}\n")
        stream.flush()
        self._counted.add(layer.name)

    def _is_whole(self, layer: Path, stream: TextIO) -> bool:
        noted = _noted(Path(stream.name))
        if noted is None or not layer.is_dir():
            return False
        _, entries, user = noted
        if layer.name not in self._counted:
            if user == os.getuid() and _measure(layer, sizes=False)[0] != entries:  # others see other folders
                return False
            self._counted.add(layer.name)
        return True

    def _evict(self) -> None:
        if self._most_bytes is None:
            return
        found = []
        for path in (self._folder / ".uses").iterdir():
            with suppress(FileNotFoundError):  # another process removes it
                if noted := _noted(path):
                    found.append((path.stat().st_mtime_ns, noted[0], path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._most_bytes:
                return
            if self._evict_one(path):
                total -= size

    def _evict_one(self, path: Path) -> bool:
        """Remove a layer unless it is in use."""
        try:
            stream = path.open("r+")  # not "a": what another has just removed must not come back
        except OSError:
            return False
        with stream:
            if not taken(stream) or not still_at(stream, path):
                return False
            stream.truncate(0)
            self._counted.discard(path.name)
            self._remove(self._folder / path.name)
            path.unlink()
        self.evictions += 1
        return True


def _lock_alone(stream: TextIO) -> bool:
    """Whether nobody else has the file locked; then this one has, and alone. Else waits a moment."""
    if taken(stream):
        return True
    fcntl.flock(stream, fcntl.LOCK_UN)
    time.sleep(random.uniform(0.001, 0.02))  # not the same for two that met
    return False


def _noted(path: Path) -> tuple[int, int, int] | None:
    """Bytes, entries and user that are noted of a whole layer."""
    try:
        size, entries, user = map(int, path.read_text().split())
    except (OSError, ValueError):
        return None
    return size, entries, user


def _measure(folder: Path, *, sizes: bool = True) -> tuple[int, int]:
    """Entries below a folder and bytes that they take, as far as this user may look."""
    count = size = 0
    waiting = [str(folder)]
    while waiting:
        with suppress(PermissionError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif sizes:
                    status = entry.stat(follow_symlinks=False)
                    size += min(status.st_size, status.st_blocks * 512)  # holes take nothing
    return count, size
