"""Locks on files: one process at a time. The kernel gives back those of a process that was killed."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Any

from leonardo.errors import InputError

AT_WORK = ".at-work"
"""How the name ends of a file that is only there to be locked, in or beside what is worked on."""


def taken(stream: IO[Any]) -> bool:
    """Whether nobody else had the file locked; then this process has it, alone, until ``stream`` is closed."""
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def in_turn(lock: Path, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the file ``lock`` alone during the block. Where another has it, calls ``waits``, then waits."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as stream:
        if not taken(stream):
            waits()
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def alone_in(folder: Path) -> AbstractContextManager[None]:
    """Work in ``folder`` alone during the block.

    A file system without locks has none of it: the block runs all the same.

    Raises:
        InputError: another process works there; says which.
    """
    return _alone(folder / AT_WORK, folder)


def alone_at(file: Path) -> AbstractContextManager[None]:
    """Make ``file`` alone during the block, otherwise as :func:`alone_in`."""
    return _alone(file.with_name(f".{file.name}{AT_WORK}"), file)


@contextmanager
def _alone(lock: Path, what: Path) -> Iterator[None]:
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("a+", encoding="utf-8") as stream:
        try:
            mine = taken(stream)
        except OSError:
            mine = True
        if not mine:
            stream.seek(0)
            by = stream.read(100).strip() or "?"
            raise InputError(f"{what}: another process works there ({by})", "Wait until it has ended")
        stream.truncate(0)
        stream.write(f"pid {os.getpid()} on {os.uname().nodename}\n")
        stream.flush()
        yield
