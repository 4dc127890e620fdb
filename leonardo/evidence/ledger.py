"""The ledger's file: appending under a lock, so that concurrent writers, kill -9 and a full disk lose no entry.

Beside ``ledger.jsonl`` lies ``ledger.head.json`` with the number of entries and the digest of the last line, so that a
removed last entry shows, too. The line is on the disk before the head is written: after an interruption the head may be
one entry behind, never ahead.
"""

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from pydantic import BaseModel, ConfigDict, ValidationError

from leonardo.errors import InputError
from leonardo.evidence.entry import FIRST, Evidence, parse
from leonardo.files import sha256_bytes, write_json

LEDGER = "ledger.jsonl"
EDITED = "Set it aside (another folder for --runs begins a new one); `leonardo evidence verify` says what is wrong"


class Head(BaseModel):
    """How many entries there are, and the digest of the last one's line."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    entries: int
    last: str


@dataclass(frozen=True)
class Lines:
    """A ledger's bytes, taken apart.

    Attributes:
        whole: the lines that have their end, without it.
        torn: what follows the last end of line; empty unless a write was interrupted or the file was edited.
    """

    whole: list[bytes]
    torn: bytes

    @property
    def head(self) -> Head:
        """What the head file should hold."""
        return Head(entries=len(self.whole), last=sha256_bytes(self.whole[-1]) if self.whole else FIRST)


def append(path: Path, entry: Evidence, tell: Callable[[str], None] = lambda words: None) -> Evidence:
    """Append ``entry`` with its time, the digest of the line before it and its own. Returns it as written.

    A last line that an interrupted write left behind is removed first, and ``tell`` is told; one that lacks nothing but
    its end is kept.

    Raises:
        InputError: the end of the ledger was edited.
        OSError: it cannot be written, for want of space for example; the ledger is then as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(path) as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        lines = _mended(stream, path, tell)
        written = entry.model_copy(
            update={
                "time": entry.time or datetime.now(UTC).isoformat(timespec="seconds"),
                "previous": lines.head.last,
            }
        ).sealed()
        try:
            _write(stream, written.line() + b"\n")
        except OSError as error:
            error.filename = str(path)  # a full disk's error names nothing
            raise
        _write_head(path, Lines([*lines.whole, written.line()], b""))
    return written


def read(path: Path) -> list[Evidence]:
    """All whole entries, oldest first; none where there is no ledger. Raises InputError on a line that is no entry."""
    entries = []
    for number, line in enumerate(split(path).whole, 1):
        try:
            entries.append(parse(line))
        except ValueError as error:
            raise InputError(f"{path} entry {number} was edited ({reason(error)})", EDITED) from error
    return entries


def split(path: Path) -> Lines:
    """The ledger's lines; none where there is no ledger."""
    return _split(path.read_bytes()) if path.exists() else Lines([], b"")


def head_path(path: Path) -> Path:
    """The head file beside a ledger."""
    return path.with_suffix(".head.json")


def read_head(path: Path) -> Head | None:
    """The head of the ledger at ``path``; None where there is none. Raises ValueError where it is no head."""
    try:
        return Head.model_validate_json(head_path(path).read_bytes())
    except FileNotFoundError:
        return None


def whole_but_for_its_end(torn: bytes) -> bool:
    """Whether a line that has no end is an entry all the same: only its end was not written."""
    try:
        return bool(parse(torn).digest)
    except ValueError:
        return False


def reason(error: ValueError) -> str:
    """Why a line is no entry, in a line."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        return f"{'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg']}"
    return " ".join(str(error).split())


def _opened(path: Path) -> BinaryIO:
    """The ledger, unbuffered, for reading and writing; made where it is not there."""
    new = not path.exists()
    stream = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
    if new:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return stream  # type: ignore[return-value]


def _split(data: bytes) -> Lines:
    *whole, torn = data.split(b"\n")
    return Lines(whole, torn)


def _mended(stream: BinaryIO, path: Path, tell: Callable[[str], None]) -> Lines:
    """The lines, after the end that an interrupted write left was removed or completed."""
    lines = _split(stream.read())
    try:
        head = read_head(path)
    except ValueError as error:
        raise InputError(f"{head_path(path)} was edited ({reason(error)})", EDITED) from error
    if head and (
        head.entries > len(lines.whole) or (head.entries and sha256_bytes(lines.whole[head.entries - 1]) != head.last)
    ):
        raise InputError(f"{path} is not what its head says: entry {head.entries} was edited or removed", EDITED)
    if lines.torn:
        if whole_but_for_its_end(lines.torn):
            stream.seek(0, os.SEEK_END)
            _write(stream, b"\n")
            tell(f"{path}: the writing of entry {len(lines.whole) + 1} was interrupted: its missing end was added")
            lines = Lines([*lines.whole, lines.torn], b"")
        else:
            stream.truncate(sum(len(line) + 1 for line in lines.whole))
            tell(
                f"{path}: {len(lines.torn)} bytes after entry {len(lines.whole)} were removed: "
                "the writing of an entry was interrupted"
            )
            lines = Lines(lines.whole, b"")
    if lines.whole and (head is None or head.entries < len(lines.whole)):
        _write_head(path, lines)
    stream.seek(0, os.SEEK_END)
    return lines


def _write(stream: BinaryIO, data: bytes) -> None:
    """Write at the end, and have it on the disk; where that fails, the file is as it was."""
    start = stream.tell()
    try:
        left = memoryview(data)
        while left:
            left = left[stream.write(left) :]
        os.fsync(stream.fileno())
    except BaseException:
        with suppress(OSError):
            stream.truncate(start)
        raise


def _write_head(path: Path, lines: Lines) -> None:
    with suppress(OSError):  # the entry is on the disk: a head that lags behind is brought up by the next append
        write_json(head_path(path), lines.head.model_dump())
