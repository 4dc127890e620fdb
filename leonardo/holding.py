"""Who works in a run folder that can be gone on with: one process at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leonardo.errors import InputError

_LOCK = ".at-work"


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Work in ``folder`` alone during the block; the kernel gives the lock back of a process that was killed.

    A file system without locks has none of it: the block runs all the same.

    Raises:
        InputError: another process works there; says which.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            stream.seek(0)
            by = stream.read(100).strip() or "?"
            raise InputError(f"{folder}: another process works there ({by})", "Wait until it has ended") from error
        except OSError:
            pass
        stream.truncate(0)
        stream.write(f"pid {os.getpid()} on {os.uname().nodename}\n")
        stream.flush()
        yield
