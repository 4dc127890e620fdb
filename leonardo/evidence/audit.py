"""Is the ledger what was written, and are the records what they were? Each fault with the number of its entry."""

from dataclasses import dataclass, field
from pathlib import Path

from leonardo.errors import InputError
from leonardo.evidence.entry import FIRST, Evidence, RecordFile, parse
from leonardo.evidence.ledger import (
    EDITED,
    Lines,
    head_path,
    read_head,
    reason,
    split,
    whole_but_for_its_end,
)
from leonardo.files import sha256_bytes, sha256_file

_LONG = 200
"""Characters of a record's path that are shown."""


@dataclass(frozen=True)
class Fault:
    """An edit: the number of the entry (from 1), and what is wrong with it."""

    entry: int
    what: str

    def __str__(self) -> str:
        return f"entry {self.entry}: {self.what}"


@dataclass
class Check:
    """What a look at a ledger found.

    Attributes:
        entries: how many it has.
        head: digest of its last line; who keeps it elsewhere can tell later whether anything was rewritten.
        records: how many records were rehashed; ``missing`` could not be.
        faults: edits.
        notes: what cannot be told, a record each, and interrupted writes.
    """

    entries: int = 0
    head: str = FIRST
    records: int = 0
    missing: int = 0
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """No edit was found."""
        return not self.faults

    @property
    def counted(self) -> str:
        """The sum, in words."""
        missing = f", {self.missing} not there" if self.missing else ""
        return f"{self.entries} entries, {self.records} records rehashed{missing}"


def check(path: Path, *, records: bool = True) -> Check:
    """Check every entry, the chain, the head, and the records that are still where they were."""
    lines = split(path)
    found = Check(entries=len(lines.whole), head=lines.head.last)
    previous, last = FIRST, None
    for number, line in enumerate(lines.whole, 1):
        try:
            entry = parse(line)
        except ValueError as error:
            found.faults.append(Fault(number, f"it was edited ({reason(error)})"))
            entry = None
        if entry is not None:
            _check_link(found, number, entry, previous, last)
            if records:
                _check_records(found, number, entry, path.parent)
        previous, last = sha256_bytes(line), entry
    _check_end(found, path, lines)
    return found


def require_whole(path: Path) -> None:
    """Raise InputError at the first fault of the ledger itself; records are not looked at."""
    for fault in check(path, records=False).faults:
        raise InputError(f"{path} {fault}", EDITED)


def changed_records(entry: Evidence, folder: Path) -> list[str]:
    """The records of an entry that are there and are not what they were; ``folder`` is the ledger's."""
    return [record.path for record in entry.records if _rehashed(record, folder) not in (None, record.sha256)]


def _rehashed(record: RecordFile, folder: Path) -> str | None:
    """The hash of a record now; None where it is not there, no file (a pipe would be waited for), or not readable."""
    try:
        place = folder / record.path
        return sha256_file(place) if place.is_file() else None
    except (OSError, ValueError):  # ValueError: a path with a zero byte
        return None


def _check_link(found: Check, number: int, entry: Evidence, previous: str, last: Evidence | None) -> None:
    if entry.previous == previous:
        return
    if number == 1:
        found.faults.append(Fault(1, "it does not begin the ledger: what came before it was removed"))
    elif last is not None and not last.digest:  # of the older form, which does not name itself
        found.faults.append(Fault(number - 1, f"it was edited: entry {number} does not follow from it"))
    elif last is not None:
        found.faults.append(
            Fault(number, f"it does not follow from entry {number - 1}: one was removed, put in, or written anew")
        )
    # where the line before is no entry at all, that is the fault, and said already


def _check_records(found: Check, number: int, entry: Evidence, folder: Path) -> None:
    for record in entry.records:
        now = _rehashed(record, folder)
        name = record.path if len(record.path) <= _LONG else f"{record.path[:_LONG]}..."
        if now is None:
            found.missing += 1
            found.notes.append(f"entry {number}: not there, or not readable, and not rehashed: {name}")
            continue
        found.records += 1
        if now != record.sha256:
            found.faults.append(Fault(number, f"its record {name} was changed"))


def _check_end(found: Check, path: Path, lines: Lines) -> None:
    try:
        head = read_head(path)
    except ValueError as error:
        found.faults.append(Fault(found.entries, f"{head_path(path).name} was edited ({reason(error)})"))
        return
    if head is None:
        if found.entries:
            found.notes.append(f"no {head_path(path).name}: a removed last entry would not show")
    elif head.entries > found.entries:
        what = "its end was edited" if lines.torn else f"it was removed ({head_path(path).name} has {head.entries})"
        found.faults.append(Fault(found.entries + 1, what))
        return
    elif head.entries and sha256_bytes(lines.whole[head.entries - 1]) != head.last:
        if not any(fault.entry == head.entries for fault in found.faults):
            found.faults.append(Fault(head.entries, f"it is not the one that {head_path(path).name} names"))
    elif not head.entries and head.last != FIRST:
        found.faults.append(Fault(found.entries, f"{head_path(path).name} was edited"))
    if lines.torn:
        mend = "completes it" if whole_but_for_its_end(lines.torn) else "removes it"
        found.notes.append(f"the writing of entry {found.entries + 1} was interrupted: the next entry's {mend}")
