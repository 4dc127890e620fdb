"""Locks on files: one process at a time. The kernel gives back those of a process that was killed."""

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
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
    """Hold the file ``lock`` alone during the block. Where another has it, calls ``waits``, then waits.

    Raises:
        InputError: it cannot be opened.
    """
    while True:
        with _opened(lock) as stream:
            if not taken(stream):
                waits()
                fcntl.flock(stream, fcntl.LOCK_EX)
            if still_at(stream, lock):
                yield
                return


def alone_in(folder: Path) -> AbstractContextManager[None]:
    """Work in ``folder`` alone during the block.

    A file system without locks has none of it: the block runs all the same.

    Raises:
        InputError: another process works there, and which; or the lock cannot be opened.
    """
    return _alone(folder / AT_WORK, folder)


def alone_at(file: Path) -> AbstractContextManager[None]:
    """Make ``file`` alone during the block, otherwise as :func:`alone_in`."""
    return _alone(file.with_name(f".{file.name}{AT_WORK}"), file)


@contextmanager
def _alone(lock: Path, what: Path) -> Iterator[None]:
    while True:
        with _opened(lock) as stream:
            try:
                mine = taken(stream)
            except OSError:
                mine = True
            if not mine:
                by = " ".join(stream.read(100).split()) or "?"
                raise InputError(f"{what}: another process works there ({by})", "Wait until it has ended")
            if not still_at(stream, lock):
                continue
            with suppress(OSError):  # a full disk: nobody is told who works there
                os.truncate(stream.fileno(), 0)
                os.write(stream.fileno(), f"pid {os.getpid()} on {os.uname().nodename}\n".encode())
            yield
            return


def _opened(lock: Path) -> IO[str]:
    """A file to be locked, made where it is not there, by whoever may write to its folder."""
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError as error:
        why = "it is a link" if error.errno == errno.ELOOP else error.strerror
        raise InputError(
            f"{lock} cannot be locked ({why})", "It has to be a file in a folder with room, which may be written to"
        ) from error
    with suppress(OSError):  # another member of the group has made it
        os.fchmod(descriptor, 0o666)
    return os.fdopen(descriptor, encoding="utf-8", errors="replace")


def still_at(stream: IO[Any], path: Path) -> bool:
    """Whether what is locked is still there under its name: who removes it lets another in."""
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.lstat())
    except FileNotFoundError:
        return False
