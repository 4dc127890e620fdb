"""What upstream's trainer saves: models, and its state.

A state is one of DeepSpeed's folders ``global_step<n>``, beside ``latest``, which names one.

The trainer goes on from what ``latest`` names. The first rank writes it when its own part is saved, whatever becomes of
the others'. Where a save was interrupted, upstream takes the folder with the most files, which may be the one that is not
whole, and ends if there is none. Nothing that was saved is removed here: what stands in the way is renamed.
"""

import errno
import os
import re
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

from leonardo.errors import InfrastructureError
from leonardo.files import write_atomic
from leonardo.taxonomy import FailureClass

LATEST = "latest"

_COMPLETE = ".checkpoint_complete"
"""The file that the trainer writes last into a model that it saves."""

_ASIDE = "set-aside-"


def mend_state(folder: Path) -> Iterator[str]:
    """Leave in ``folder`` what the trainer can go on from, and yield a line for each thing that is done about it.

    Folders after the one that ``latest`` names are set aside: the save was interrupted. Where ``latest`` names none, or
    one that is not whole, it is written anew for the newest state that is whole; where none is, the whole folder is set
    aside, since upstream wants no folder where there is no state. A state of which it is not certain is kept where no
    earlier one is whole. What is set aside lies beside ``folder``, until something else is.

    Raises:
        InfrastructureError: the disk does not take it.
    """
    try:
        yield from _mended(folder)
    except OSError as error:
        raise InfrastructureError(
            f"{error.filename or folder}: the saved state cannot be made ready ({error.strerror})",
            "Make room there, or make it writable",
            FailureClass.SPACE if error.errno in (errno.ENOSPC, errno.EDQUOT) else FailureClass.RUNTIME,
        ) from error


def _mended(folder: Path) -> Iterator[str]:
    if not folder.is_dir():
        return
    saved = {path.name: path for path in sorted(folder.glob("global_step*"), key=_step) if _is_one(path)}
    named, earlier = _latest(folder), set(folder.parent.glob(f"{_ASIDE}*"))
    whole = _whole(list(saved.values()), os.path.lexists(folder / LATEST))
    spoilt = named in saved and not _files_are_whole(saved[named])
    if named in saved and named not in whole and whole:  # it may lack files
        spoilt |= _step(saved[whole[-1]]) < _step(saved[named])
    if named not in saved or spoilt:
        wrong = f"names {named[:40]!r}, which is not {'whole' if spoilt else 'there'}" if named else "cannot be read"
        if (folder / LATEST).is_dir():
            wrong = f"is a folder, set aside as {_set_aside(folder / LATEST, earlier, folder.parent)}"
            folder.joinpath(LATEST).touch()  # something had been written in its name
        named = whole[-1] if whole else ""
        if named:
            write_atomic(folder / LATEST, named)
            yield f"{folder / LATEST} {wrong}: it is written anew, for {named}, the newest state that is whole"
    if not named:
        aside = _set_aside(folder, earlier)
        yield f"{folder} names no state that is whole ({', '.join(saved) or 'it has none'}): set aside as {aside}"
        return
    for path in saved.values():
        if _step(path) > _step(saved[named]):
            yield f"state {path.name} was not saved to its end: set aside as {_set_aside(path, earlier, folder.parent)}"


def saved_models(folder: Path) -> list[Path]:
    """The models that the trainer saved whole below ``folder``, in their order: the last one, and those on the way."""
    # a folder that it names after run, seed and time; those on the way lie one folder deeper
    marks = [mark for depth in ("*", "*/*") for mark in folder.glob(f"{depth}/{_COMPLETE}")]
    return [mark.parent for mark in sorted(marks, key=lambda mark: mark.stat().st_mtime)]


def saved_state(folder: Path) -> str:
    """The state that is there to go on from; "" where there is none."""
    named = _latest(folder)
    return named if named and (folder / named).is_dir() else ""


def _whole(saved: list[Path], was_named: bool) -> list[str]:
    """Those of ``saved``, oldest first, that have their files, as many as any before, and each to its end.

    How many files a state has is known from another one alone: a single one counts only where something had been
    written in its name, which the trainer does last.
    """
    counts = [len(_files(path)) for path in saved]
    whole = [
        path.name
        for number, path in enumerate(saved)
        if counts[number] == max(counts[: number + 1]) and _files_are_whole(path)
    ]
    return whole if len(saved) > 1 or was_named else []


def _files(state: Path) -> list[Path]:
    return sorted(state.glob("*.pt"))


def _files_are_whole(state: Path) -> bool:
    """PyTorch writes ZIP archives, whose directory comes last."""
    files = _files(state)
    kinds = [any(path.stem.endswith(kind) for path in files) for kind in ("model_states", "optim_states")]
    return all(kinds) and all(zipfile.is_zipfile(path) for path in files)


def _set_aside(path: Path, earlier: set[Path], place: Path | None = None) -> str:
    """Rename it; what was set aside at an earlier start goes, so that it stays bounded. Returns the new name."""
    target = (place or path.parent) / f"{_ASIDE}{path.name}"
    while earlier:
        old = earlier.pop()
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.unlink(missing_ok=True)
    return path.rename(target).name


def _latest(folder: Path) -> str:
    """What ``latest`` names; "" where it is not there, is no file, or holds no name."""
    latest = folder / LATEST
    try:
        named = latest.read_text(encoding="utf-8").strip() if latest.is_file() else ""
    except (OSError, UnicodeDecodeError):
        return ""
    return named if re.fullmatch(r"global_step\d+", named) else ""


def _step(path: Path) -> int:
    digits = path.name.removeprefix("global_step")
    return int(digits) if digits.isdecimal() else -1


def _is_one(path: Path) -> bool:
    return path.is_dir() and re.fullmatch(r"global_step\d+", path.name) is not None
