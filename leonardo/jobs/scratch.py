"""A job's folder on a node: made for its user alone, known by its mark, and removed without touching anything else."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from leonardo.errors import InfrastructureError, InputError
from leonardo.jobs import slurm

_MARK = ".leonardo-job"
"""A file in a job's scratch: no other folder that is called like one is taken for it."""


def make(scratch: Path) -> None:
    """Make it and mark it; an earlier start of the job may have done so. Raises OSError."""
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_own(scratch):
        raise FileExistsError(errno.EEXIST, "somebody else made it", str(scratch))
    scratch.chmod(0o700)
    (scratch / _MARK).touch()


def leftovers(scratch: Path) -> Iterator[Path]:
    """Scratch of this user's jobs on this node that have ended, beside the one of this job."""
    found = [path for path in scratch.parent.glob("l*") if path != scratch and _is_marked(path)]
    try:
        alive = slurm.alive() if found else set()  # asked after they were seen: what begins meanwhile is not among them
    except (InputError, InfrastructureError):  # nobody says which have ended
        return
    if _job(scratch) in alive:  # an answer that leaves out the job that asks may leave out others
        yield from (path for path in found if _job(path) not in alive)


def remove(scratch: Path) -> str:
    """Remove what is this user's scratch, its mark last. Returns what stays, and why; "" where it is gone.

    A folder in it is moved up into it before it is looked into: none lies too deep, and nothing of another place is
    touched, since what is mounted cannot be moved. Links are removed, not followed.
    """
    try:
        if not _is_own(scratch):
            return f"{scratch} (somebody else made it)"
        scratch.chmod(0o700)
        stays, waiting = "", [scratch]
        while waiting:
            folder = waiting.pop()
            for entry in list(os.scandir(folder)):
                if entry.path == str(scratch / _MARK):
                    continue
                try:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(_moved_up(Path(entry.path), scratch))
                    else:
                        Path(entry.path).unlink()
                except FileNotFoundError:
                    continue
                except OSError as error:
                    stays = stays or f"{entry.path!r} ({error.strerror})"
            if folder != scratch:
                with suppress(OSError):  # what keeps it is told
                    folder.rmdir()
        return stays or _removed_at_last(scratch)
    except FileNotFoundError:  # another job that begins here removes it, too
        return str(scratch) if os.path.lexists(scratch) else ""
    except OSError as error:
        return f"{error.filename!r} ({error.strerror})"


def _moved_up(folder: Path, scratch: Path) -> Path:
    # renamed where it is at first: a mounted one cannot be, and its mode is not ours to change
    renamed = folder.rename(folder.with_name(f".{uuid4().hex}"))
    try:
        renamed.chmod(0o700)
        return renamed.rename(scratch / renamed.name)
    except OSError:
        renamed.rename(folder)
        raise


def _removed_at_last(scratch: Path) -> str:
    (scratch / _MARK).unlink(missing_ok=True)
    try:
        scratch.rmdir()
    except OSError as error:
        (scratch / _MARK).touch()  # a later job finds it
        return f"{scratch} ({error.strerror})"
    return ""


def _job(scratch: Path) -> str:
    return scratch.name.removeprefix("l")


def _is_own(path: Path) -> bool:
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _is_marked(path: Path) -> bool:
    try:
        return _job(path).isdecimal() and _is_own(path) and (path / _MARK).is_file()
    except OSError:  # it is gone
        return False
