"""What a build needs, looked at before it begins: an hour of work that ends for want of space helps nobody."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from leonardo.errors import InputError
from leonardo.files import require_writable

GIB = 1 << 30
SPACE = 3 * GIB
"""Bytes that must be free in the store: a base image, the packages that apt keeps, some layers."""
SPACE_PER_JOB = GIB
"""Bytes beside that for what each job has unfinished."""
INODES = 100_000
"""Files that may still be made: an unpacked base and some layers."""
MEMORY_PER_JOB = 2 * GIB
"""What a set-up takes as a rule: its writable layer is in memory."""
_TOOLS = {"tar": "", "gzip": "", "find": ""}


@dataclass(frozen=True)
class Findings:
    """What was found.

    Attributes:
        problems: why the build must not begin, one line each.
        jobs: how many jobs the machine has room for, of those asked for.
        notes: what is worth knowing, one line each.
    """

    problems: tuple[str, ...]
    jobs: int
    notes: tuple[str, ...] = ()


def inspect(root: Path, jobs: int, images: Sequence[str] = (), missing_pins: Sequence[str] = ()) -> Findings:
    """Look at the store's disk, this machine's tools and memory, and the bases that a build offline would need.

    Args:
        root: the store.
        jobs: set-ups at a time.
        images: base images that would have to be made here.
        missing_pins: what earlier builds of the same rows were made of and is another now, in words.
    """
    problems, notes = [], list(missing_pins)
    try:
        require_writable(root)
    except InputError as error:
        problems.append(str(error))
    place = root.absolute()
    while not place.exists():
        place = place.parent
    status = os.statvfs(place)
    free, needed = status.f_bavail * status.f_frsize, SPACE + jobs * SPACE_PER_JOB
    if free < needed:
        problems.append(f"{root}: {free / GIB:.1f} GiB are free and {needed / GIB:.0f} are needed: make room there")
    if status.f_files and status.f_favail < INODES:  # some file systems have no such number
        problems.append(f"{root}: {status.f_favail} more files can be made and {INODES} are needed: remove some")
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            problems.append(f"{tool} is not installed: install it")
    if images and not any(map(shutil.which, ("apptainer", "singularity", "apt-get"))):
        problems.append(f"neither Apptainer nor apt is here, and {', '.join(images)} would have to be made")
    if shutil.which("zstd") is None:
        notes.append("zstd is not installed: layers are unpacked by way of a temporary file")
    room = max(1, _available_memory() // MEMORY_PER_JOB)
    if room < jobs:
        notes.append(f"{jobs} jobs were asked for, and the memory is for {room}")
    return Findings(tuple(problems), min(jobs, room), tuple(notes))


def _available_memory() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return 1 << 62
