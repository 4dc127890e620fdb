"""Who works on a store: builders that take turns, those who have handed out states, who removes things alone."""

import fcntl
import threading
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TextIO

from leonardo.assets.progress import BuildProgress
from leonardo.holding import in_turn


class StoreLocks:
    """The locks of a store, files below ``locks/``; the kernel gives back those of a process that was killed.

    Args:
        root: folder of the store.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._use: TextIO | None = None

    @property
    def users(self) -> Path:
        """Shared by whoever builds or has handed out states; who removes things must have it alone."""
        return self._root / "locks" / "users"

    def use(self) -> None:
        """Share :attr:`users` from here on; again, it changes nothing."""
        with self._lock:
            if self._use is None:
                with suppress(OSError):
                    self.users.parent.mkdir(parents=True, exist_ok=True)
                    self.users.touch()
                with suppress(FileNotFoundError):  # a store that nobody can write to has nothing removed
                    self._use = self.users.open()
                    fcntl.flock(self._use, fcntl.LOCK_SH)

    def release(self) -> None:
        """Let others remove things. May be called twice."""
        with self._lock:
            if self._use is not None:
                self._use.close()
                self._use = None

    def alone(self, name: str, progress: BuildProgress | None = None) -> AbstractContextManager[None]:
        """Hold the lock ``name`` alone during the block; says in ``progress`` where it has to wait."""
        said = progress or BuildProgress()
        words = f"another build works on {self._root}: waiting for it"
        return in_turn(self._root / "locks" / name, lambda: said.note(words))
