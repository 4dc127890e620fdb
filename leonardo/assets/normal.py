"""The normal form of a layer: what two runs of one set-up have in common.

A set-up leaves the time of its run in three places: times of files, the source's time in Python's compiled files, and
the day in /etc/shadow. In all three a moment within the run becomes :data:`MOMENT`; every other time stays, whoever set
it. Logs and caches of package managers, which say when and how but nothing about what, are left out, and apt's list of
what was asked for is sorted.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pyarrow

from leonardo.assets import tarstream
from leonardo.assets.tarstream import FILE, HARD_LINK, Entry

NORMAL_VERSION = 1
"""Raise it where the same files would now give another layer."""

MOMENT = 1_767_225_600
"""2026-01-01, for every moment within a set-up: later than what scripts of the data set write down, and past."""

_DAY = 86_400
_BEFORE = 2  # seconds: the clock of files is behind the other by up to a tick, and times are cut to seconds

VOLATILE = re.compile(
    r"var/log/(?:dpkg\.log|alternatives\.log|bootstrap\.log|fontconfig\.log|apt/.+)|"
    r"var/cache/apt/(?:[^/]+\.bin|archives/.+)|var/lib/apt/lists/.+|"
    r"var/cache/ldconfig/aux-cache|var/cache/debconf/[^/]+-old|var/lib/dpkg/[^/]+-old|"
    r"root/\.cache/pip/.+|root/\.wget-hsts"
)
"""Files, by their path below the root, that are left out; a comparison with an image leaves them out, too."""

MOST_OWN_FILES = 256
MOST_OWN_BYTES = 1 << 20
"""Bounds of what is copied at each reset: a millisecond or two."""

# what a distribution fills; what a task is about lies elsewhere
_SYSTEM_FOLDERS = frozenset(("usr", "var", "etc", "bin", "sbin", "lib", "lib32", "lib64", "boot", "dev", "proc", "sys"))


@dataclass(frozen=True)
class Content:
    """What a layer holds.

    Attributes:
        entries: its members.
        size: bytes of file content.
        own: the files that a task is about.
        keeps_times: its files have times that order them around :data:`MOMENT`, so all times stayed as they were.
    """

    entries: int
    size: int
    own: tuple[str, ...]
    keeps_times: bool


def normalise(archive: Path, target: IO[bytes], begun: float, ended: float) -> Content:
    """Write the normal form of a gzipped ``archive`` that was captured of a run between two times (Unix).

    Raises:
        BrokenArchive, OSError: the archive cannot be read.
    """
    first, last = begun - _BEFORE, ended
    linked, content = _survey(archive, first, last)
    mend = _Mender(first, last) if not content.keeps_times else None
    with _opened(archive) as stream:
        for entry, data in tarstream.entries(stream):
            if entry.kind == FILE and VOLATILE.fullmatch(entry.path) and entry.path not in linked:
                continue
            entry.forget_writer()
            if mend and first <= entry.time <= last:
                entry.set_time(MOMENT)
            change = _change_of(entry, mend)
            if change is None:
                entry.write(target)
                tarstream.copy_content(data, entry.size, target)
            else:
                mended = change(data.read())
                entry.set_size(len(mended))
                entry.write(target)
                target.write(mended + tarstream.pad(len(mended)))
    tarstream.end(target)
    return content


def _opened(archive: Path) -> IO[bytes]:
    return pyarrow.input_stream(str(archive), compression="gzip", buffer_size=1 << 20)


def _survey(archive: Path, first: float, last: float) -> tuple[set[str], Content]:
    """What hard links point to, and what the layer holds."""
    linked: set[str] = set()
    own: list[str] = []
    entries = size = own_size = 0
    keeps_times = False
    with _opened(archive) as stream:
        for entry, _ in tarstream.entries(stream):
            path = entry.path
            if entry.kind == HARD_LINK:
                linked.add(entry.target)
            elif entry.kind == FILE and VOLATILE.fullmatch(path):
                continue
            entries += 1
            size += entry.content_size
            if entry.kind not in (FILE, HARD_LINK) or path.split("/")[0] in _SYSTEM_FOLDERS:
                continue
            keeps_times |= not first <= entry.time <= last and entry.time > MOMENT
            if len(own) < MOST_OWN_FILES and own_size + entry.content_size <= MOST_OWN_BYTES:
                own.append(path)
                own_size += entry.content_size
    return linked, Content(entries, size, tuple(own), keeps_times)


class _Mender:
    """Files whose content tells the time of the run."""

    def __init__(self, first: float, last: float) -> None:
        self._first, self._last = int(first), int(last)

    def compiled(self, data: bytes) -> bytes:
        """Python's compiled file: four bytes of magic, of flags (0: by time), of the source's time."""
        if data[4:8] == b"\0\0\0\0" and self._first <= int.from_bytes(data[8:12], "little") <= self._last:
            return data[:8] + MOMENT.to_bytes(4, "little") + data[12:]
        return data

    def shadow(self, data: bytes) -> bytes:
        """The day of a password's last change."""
        days = {b"%d" % day for day in range(self._first // _DAY, self._last // _DAY + 1)}
        lines = [line.split(b":") for line in data.split(b"\n")]
        for fields in lines:
            if len(fields) > 2 and fields[2] in days:
                fields[2] = b"%d" % (MOMENT // _DAY)
        return b"\n".join(b":".join(fields) for fields in lines)


def _change_of(entry: Entry, mend: _Mender | None) -> Callable[[bytes], bytes] | None:
    """What is done to a file's content."""
    if entry.kind != FILE or entry.is_sparse or not entry.size:
        return None
    if entry.path == "var/lib/apt/extended_states":
        return _sorted_states
    if mend and entry.path.endswith(".pyc"):
        return mend.compiled
    if mend and entry.path in ("etc/shadow", "etc/shadow-"):
        return mend.shadow
    return None


def _sorted_states(data: bytes) -> bytes:
    """Which packages came for another's sake: in the order of their names, without those that did not."""
    paragraphs = [paragraph.strip(b"\n") for paragraph in data.split(b"\n\n")]
    kept = sorted(paragraph for paragraph in paragraphs if b"\nAuto-Installed: 1" in paragraph)
    return b"".join(paragraph + b"\n\n" for paragraph in kept)
