"""How much may still be written below a folder: by the file system, and by the user's quota where one can be asked."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from leonardo.cluster import Roots
from leonardo.errors import InputError
from leonardo.jobs.findings import Finding

_GIB = 1 << 30


def space_findings(roots: Roots) -> Iterator[Finding]:
    """Where less is left than the site wants."""
    for root in dict.fromkeys((roots.shared, roots.scratch)):
        if "$" in str(root):
            continue
        try:
            place = _existing(root)
            left = _left(place)
        except OSError as error:
            yield Finding("space.quota", f"{root} cannot be looked at ({error.strerror})", "Mend roots of the site")
            continue
        for where, gib, files in left:
            if gib < roots.least_free:
                yield Finding(
                    "space.quota",
                    f"{root}: {gib:.1f} GiB are left by the {where}, {roots.least_free:g} are wanted",
                    "Free some, or lower least_free of the site",
                )
            if files is not None and files < roots.least_files:
                yield Finding(
                    "space.files",
                    f"{root}: {files:.0f} more files are allowed by the {where}, {roots.least_files} are wanted",
                    "Remove what is not needed (make assets-gc), or lower least_files of the site",
                )


def require_room(needs: Mapping[Path, float], what: str) -> None:
    """Raise InputError where a folder's file system or quota leaves fewer bytes than are needed.

    Folders of one file system share what is left; one that is not there counts as its nearest parent that is.
    """
    places = {folder: _existing(folder.absolute()) for folder in needs}
    for folder, place in places.items():
        device = place.stat().st_dev
        needed = sum(size for other, size in needs.items() if places[other].stat().st_dev == device)
        for where, gib, _ in _left(place):
            if gib * _GIB < needed:
                raise InputError(
                    f"{folder} has {gib * _GIB / 1e6:,.1f} MB left by the {where}, and {what} needs "
                    f"{needed / 1e6:,.1f}",
                    "Make room there",
                )


def _left(place: Path) -> list[tuple[str, float, float | None]]:
    """By what, and how many GiB and files it still allows; None where files are not counted."""
    status = os.statvfs(place)
    files = float(status.f_favail) if status.f_files else None
    left = [("file system", status.f_bavail * status.f_frsize / _GIB, files)]
    quota = lustre_quota(place)
    return left if quota is None else [*left, ("quota", *quota)]


def lustre_quota(folder: Path) -> tuple[float, float | None] | None:
    """GiB and files left by a user's Lustre quota; None where there is no Lustre or no limit."""
    if shutil.which("lfs") is None:
        return None
    command = ["lfs", "quota", "-q", "-u", str(os.getuid()), str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):  # nothing is known then; the file system's own figures are
        return None
    return parse_quota(done.stdout) if done.returncode == 0 else None


def parse_quota(text: str) -> tuple[float, float | None] | None:
    """``lfs quota -q``: file system, KiB used, soft and hard limit, grace, files used, soft and hard limit, grace."""
    numbers = [int(word.rstrip("*")) for word in text.split() if re.fullmatch(r"\d+\*?", word)]
    if len(numbers) < 6:
        return None
    used, _, limit, files, _, most_files = numbers[:6]
    if not limit:
        return None
    return (limit - used) * 1024 / _GIB, (most_files - files if most_files else None)


def _existing(folder: Path) -> Path:
    place = folder
    while not place.exists():
        place = place.parent
    return place
