"""The ledger: all evidence, one JSON object a line, only ever appended to.

Each entry holds the SHA-256 of the line before it, so that a changed, removed or inserted line shows. Appending takes a
lock and is on the disk when it returns.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from leonardo.errors import InputError
from leonardo.files import sha256_bytes

FIRST = "0" * 64
"""What the first entry holds as the digest of the line before it."""


@dataclass(frozen=True)
class Evidence:
    """What a gate or a stage found.

    Attributes:
        name: the gate or stage.
        verdict: ``pass`` or ``fail``.
        figures: what was measured.
        pins: what it was measured on.
        time: when, UTC, ISO 8601.
        previous: SHA-256 of the line before.
    """

    name: str
    verdict: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    pins: Mapping[str, Any] = field(default_factory=dict)
    time: str = ""
    previous: str = ""


def append(path: Path, entry: Evidence) -> Evidence:
    """Append ``entry``, with its time and the digest of the line before it. Returns it as written.

    Raises:
        InputError: the ledger's last line is cut short: somebody else's writing was interrupted, or it was edited.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        last = _last_line(stream, path)
        written = Evidence(
            **asdict(entry)
            | {
                "time": entry.time or datetime.now(UTC).isoformat(timespec="seconds"),
                "previous": sha256_bytes(last) if last else FIRST,
            }
        )
        line = json.dumps(asdict(written), sort_keys=True, allow_nan=False) + "\n"
        stream.write(line.encode())
        stream.flush()
        os.fsync(stream.fileno())
    return written


def read(path: Path) -> list[Evidence]:
    """All entries, oldest first; none where there is no ledger. Raises InputError on a line that is no entry."""
    if not path.exists():
        return []
    entries = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            entries.append(Evidence(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise InputError(f"{path} line {number} is no evidence", "The ledger was edited: set it aside") from error
    return entries


def verify(path: Path) -> int:
    """Check that every entry follows from the one before. Returns the number of entries.

    Raises:
        InputError: one does not; names its line.
    """
    entries = read(path)
    previous = FIRST
    lines = path.read_bytes().splitlines() if entries else []
    for number, (entry, line) in enumerate(zip(entries, lines, strict=True), 1):
        if entry.previous != previous:
            raise InputError(
                f"{path} line {number} does not follow from the line before it", "The ledger was edited: set it aside"
            )
        previous = sha256_bytes(line)
    return len(entries)


def _last_line(stream: Any, path: Path) -> bytes:
    """The last line without its end; empty for an empty ledger."""
    end = stream.seek(0, os.SEEK_END)
    block, text = 4096, b""
    while end > 0:
        start = max(0, end - block)
        stream.seek(start)
        text = stream.read(end - start)
        if start == 0 or b"\n" in text[:-1]:
            break
        block *= 4
    if text and not text.endswith(b"\n"):
        raise InputError(f"{path} ends within a line", "Its last entry was not finished: remove that line")
    return text[:-1].rpartition(b"\n")[2]
