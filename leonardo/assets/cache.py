"""Unpacked deltas of a node, in bounded space: the least recently used go first, and never one that is in use.

Below the cache's folder: ``<digest>/`` is a layer, ``.uses/<digest>`` says in its text how many bytes it takes, by its
time when it was last used, and by a shared lock on it that it is in use, by whichever process. A process that is
killed holds no lock.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

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

    @contextmanager
    def using(self, digest: str, size: int, unpack: Unpack) -> Iterator[Path]:
        """The layer's folder, which stays during the block. ``unpack`` makes the folder where it is missing."""
        stream = self._take(digest, size, unpack)
        try:
            yield self._folder / digest
        finally:
            stream.close()

    def _take(self, digest: str, size: int, unpack: Unpack) -> TextIO:
        uses, layer = self._folder / ".uses", self._folder / digest
        uses.mkdir(parents=True, exist_ok=True)
        missed = False
        while True:
            stream = (uses / digest).open("a")
            try:
                fcntl.flock(stream, fcntl.LOCK_SH)
                if _is_at(stream, uses / digest):
                    if layer.is_dir():
                        self._note(stream, size)
                        break
                    fcntl.flock(stream, fcntl.LOCK_EX)
                    if _is_at(stream, uses / digest) and not layer.is_dir():
                        missed = True
                        unpack(layer)
            except BaseException:
                stream.close()
                raise
            stream.close()  # once more, since it may have been removed before the lock was ours
        if missed:
            self.misses += 1
            self._evict()
        else:
            self.hits += 1
        return stream

    def _note(self, stream: TextIO, size: int) -> None:
        if not os.fstat(stream.fileno()).st_size:
            stream.write(f"{size}\n")
            stream.flush()
        now = time.time_ns()  # the kernel's own notion of now has steps of milliseconds
        os.utime(stream.fileno(), ns=(now, now))

    def _evict(self) -> None:
        if self._most_bytes is None:
            return
        found = []
        for path in (self._folder / ".uses").iterdir():
            with suppress(OSError, ValueError, IndexError):  # another process removes it, or has just made it
                found.append((path.stat().st_mtime_ns, int(path.read_text().split()[0]), path))
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
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            if not _is_at(stream, path):
                return False
            self._remove(self._folder / path.name)
            path.unlink()
        self.evictions += 1
        return True


def _is_at(stream: TextIO, path: Path) -> bool:
    """Whether the open file is still the one at the path."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except FileNotFoundError:
        return False
