"""What upstream's trainer saves: models, and its state. The state from which upstream's trainer goes on: DeepSpeed's folders ``global_step<n>``, and ``latest``, which names one.

The trainer goes on from what ``latest`` names. Where a save was interrupted, upstream takes the folder with the most
files, which may be the one that is not whole, and ends if there is none.
"""

import re
import shutil
from pathlib import Path

_COMPLETE = ".checkpoint_complete"
"""The file that the trainer writes last into a model that it saves."""


def drop_unfinished(folder: Path) -> list[str]:
    """Remove what an interrupted save left: folders after the one that ``latest`` names; all of it where none is named.

    Returns:
        The names of what was removed.
    """
    saved = sorted((int(path.name[len("global_step") :]), path) for path in folder.glob("global_step*") if _is_one(path))
    named = _latest(folder)
    kept = [number for number, path in saved if path.name == named]
    removed = [path for number, path in saved if not kept or number > kept[0]]
    for path in removed:
        shutil.rmtree(path, ignore_errors=True)
    if not kept and folder.is_dir():  # upstream wants no folder where there is no state
        shutil.rmtree(folder, ignore_errors=True)
    return [path.name for path in removed]


def saved_models(folder: Path) -> list[Path]:
    """The models that the trainer saved whole below ``folder``, in their order: the last one, and those on the way."""
    # a folder that it names after run, seed and time; those on the way lie one folder deeper
    marks = [mark for depth in ("*", "*/*") for mark in folder.glob(f"{depth}/{_COMPLETE}")]
    return [mark.parent for mark in sorted(marks, key=lambda mark: mark.stat().st_mtime)]


def saved_state(folder: Path) -> str:
    """The state that is there to go on from; "" where there is none."""
    named = _latest(folder)
    return named if named and (folder / named).is_dir() else ""


def _latest(folder: Path) -> str:
    try:
        return (folder / "latest").read_text().strip()
    except OSError:
        return ""


def _is_one(path: Path) -> bool:
    return path.is_dir() and re.fullmatch(r"global_step\d+", path.name) is not None
