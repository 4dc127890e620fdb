"""Rows as the data set that upstream's trainer reads on a cluster: each with its prepared state in place of an image.

A row goes in if its state was built here and nothing was found against it (``make audit``); every other is counted by
the reason, and listed.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from leonardo.assets.manifest import ManifestEntry, manifest_digest
from leonardo.assets.progress import say
from leonardo.assets.store import AssetStore
from leonardo.engine.upstream.dataset import WRITTEN, write_dataset
from leonardo.errors import FailureClass, InputError
from leonardo.files import digest_of, require_writable, write_atomic, write_json, write_verdict
from leonardo.gates.verdicts import FILE, read_verdicts, selectable
from leonardo.hooks.sandbox import SCHEME
from leonardo.rollout.episode import EpisodeSettings
from leonardo.sandbox.drivers import open_driver
from leonardo.site import load_site
from leonardo.tasks.task import Task

NOT_BUILT = "not-built"
LEFT_OUT = "left-out.txt"


def write_data(
    tasks: Sequence[Task],
    folder: Path,
    out_path: Path,
    episode: EpisodeSettings,
    *,
    site: str | Path = "desk",
    driver_name: str = "auto",
    also: Collection[FailureClass] = (),
    console: Console,
) -> dict[str, Any]:
    """Write ``tasks`` below ``folder``, which is made, whole or not at all; and the verdict ``out_path``.

    Args:
        episode: the stage's; how many calls an episode may make is part of a row.
        also: classes of verdicts whose rows are taken all the same.

    Returns:
        The figures: ``rows``, ``written``, and ``left_out``, a count by reason.

    Raises:
        InputError: ``folder`` is there already, or no row is left.
    """
    if folder.exists():
        raise InputError(f"{folder} is there already", "Name a new folder: runs may be reading this one")
    for place in (folder.parent, out_path.parent):
        require_writable(place)
    settings = load_site(site)
    root = settings.cache / "assets"
    verdicts = read_verdicts(root / FILE)
    with open_driver(driver_name) as driver:
        store = AssetStore(root, driver, settings)
        built = {task.id: entry for task in tasks if (entry := store.entry(task)) and entry.failure is None}
    usable = {task.id for task in selectable(tasks, verdicts, also)}
    chosen = [task for task in tasks if task.id in built and task.id in usable]
    reasons = {
        task.id: NOT_BUILT if task.id not in built else str(verdicts[task.digest].failure)
        for task in tasks
        if task.id not in built or task.id not in usable
    }
    if not chosen:
        raise InputError(f"none of {len(tasks)} rows can be used ({_counted(reasons)})", "Build them: make assets")
    pins = _pins(chosen, [built[task.id] for task in chosen])
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write_dataset(temporary, chosen, {id: f"{SCHEME}{built[id].prepared}" for id in built}, episode.steps)
        write_atomic(temporary / LEFT_OUT, "".join(f"{id}\t{reason}\n" for id, reason in sorted(reasons.items())))
        write_json(temporary / WRITTEN, pins)
        temporary.chmod(0o755)
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    figures = {"rows": len(tasks), "written": len(chosen), "left_out": dict(Counter(reasons.values()))}
    write_verdict(out_path, True, figures, pins)
    left_out = f"; left out: {_counted(reasons)} ({folder / LEFT_OUT})" if reasons else ""
    say(console, f"written: {len(chosen)} of {len(tasks)} rows in {folder}{left_out}")
    return figures


def _pins(tasks: Sequence[Task], entries: Sequence[ManifestEntry]) -> dict[str, Any]:
    bases = {entry.image: entry.base for entry in entries if entry.base}
    digests = digest_of(sorted(task.digest for task in tasks))
    return {"tasks": digests, "manifest": manifest_digest(list(entries)), "bases": bases}


def _counted(reasons: dict[str, str]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in Counter(reasons.values()).most_common())
