"""Cleans what a crashed node or a killed driver left: nothing of a driver that lives, and nothing that is not ours."""

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from leonardo.errors import InfrastructureError
from leonardo.sandbox import leases
from leonardo.sandbox.leases import Left, Note

STALE = 24 * 3600.0
"""Seconds after which a temporary folder of ours that no lease tells of is taken to be left."""
_TEMPORARY = "leonardo-"


def clean(discard: Callable[[Path], None]) -> list[str]:
    """Undo what abandoned leases tell of; what was done, a line each. What fails is tried again next time.

    Args:
        discard: removes a folder whose files may belong to a driver's ids (``driver.discard``).
    """
    done: list[str] = []
    with leases.abandoned() as found:
        for lease in found:
            try:
                for note in lease.notes:
                    _undo(lease, note, discard, done)
            except (OSError, InfrastructureError) as error:
                done.append(f"not yet: {error}")
                continue
            lease.path.unlink(missing_ok=True)
    for folder in _old_temporary_folders():
        try:
            _remove(folder, discard)
        except (OSError, InfrastructureError):
            continue  # not ours to remove, or in use
        done.append(f"removed {folder}")
    return done


def _undo(lease: Left, note: Note, discard: Callable[[Path], None], done: list[str]) -> None:
    match note.kind:
        case "process":
            process = int(note.value)
            if note.began and leases.began(process) == note.began:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                    done.append(f"ended process {process}")
        case "folder":
            place = Path(note.value)
            for left in sorted(place.glob(f".*-{lease.id}-*")) if place.is_dir() else []:
                _remove(left, discard)
                done.append(f"removed {left}")
        case "cgroup":
            if _remove_cgroup(Path(note.value)):
                done.append(f"removed cgroup {note.value}")


def _remove(path: Path, discard: Callable[[Path], None]) -> None:
    if not path.is_dir() or path.is_symlink():
        path.unlink()
        return
    try:
        shutil.rmtree(path)
    except OSError:
        discard(path)


def _remove_cgroup(path: Path) -> bool:
    """Kill what is in a cgroup and remove it with those below. Whether there was one."""
    if not path.is_dir():
        return False
    groups = sorted((place for place, _, _ in os.walk(path)), key=len, reverse=True)
    for group in groups:
        for line in Path(group, "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line), signal.SIGKILL)
    end = time.monotonic() + 5
    for group in groups:
        while True:
            try:
                Path(group).rmdir()
                break
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.02)
    return True


def _old_temporary_folders() -> list[Path]:
    found = []
    for folder in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            ours = status.st_uid == os.geteuid() and folder != leases.folder()
            if ours and folder.is_dir() and not folder.is_symlink() and time.time() - status.st_mtime > STALE:
                found.append(folder)
    return found
