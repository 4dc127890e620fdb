"""An entry in words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leonardo.evidence.entry import Evidence
from leonardo.files import flat

_LONG = 32


def explain(entries: Sequence[Evidence], number: int) -> Iterator[str]:
    """Lines on entry ``number`` (from 1): what was found, on what, from what, and what it stands on."""
    entry = entries[number - 1]
    where = f" on the site {entry.site}" if entry.site else ""
    yield f"Entry {number}: the {entry.kind or 'check'} {entry.name}{where}, {entry.time}: {entry.verdict.upper()}."
    if entry.says:
        yield entry.says
    for stain in entry.stains:
        yield f"STAINED: {stain}"
    yield from _criteria(entry)
    if not entry.criteria:
        yield f"Measured: {in_words(entry.figures) or 'nothing'}."
    yield f"Pinned to: {in_words(entry.pins) or 'nothing'}."
    yield from _stands_on(entries, entry)
    if entry.records:
        yield f"It came from {len(entry.records)} records:"
        for record in entry.records:
            yield f"  {record.path} (SHA-256 {record.sha256[:12]}...)"
    else:
        yield "It names no records: nothing but this line bears it out."


def _criteria(entry: Evidence) -> Iterator[str]:
    if not entry.criteria:
        return
    met = sum(judged.ok for judged in entry.criteria)
    yield f"Criteria met: {met} of {len(entry.criteria)}."
    for judged in entry.criteria:
        value = "not measured" if judged.value is None else shown(judged.value)
        yield f"  {'met    ' if judged.ok else 'NOT MET'} {judged.figure}: {value} (asked: {judged.threshold})"


def _stands_on(entries: Sequence[Evidence], entry: Evidence) -> Iterator[str]:
    if entry.forced:
        yield f"It was forced: {entry.forced}"
    if not entry.builds_on:
        return
    for number, other in enumerate(entries, 1):
        if other.digest == entry.builds_on:
            yield f"It builds on entry {number}, {other.name}, {other.verdict}."
            return
    yield f"It builds on an entry that is not here (digest {entry.builds_on[:12]}...)."


def in_words(values: Mapping[str, Any]) -> str:
    """Values by name, in a line; long digests are cut, nested values named with dots, lists counted."""
    return ", ".join(f"{name} {shown(value)}" for name, value in flat(values).items())


def shown(value: Any) -> str:
    """A value for people."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return f"({len(value)} items)" if any(isinstance(each, dict | list) for each in value) else str(value)
    text = str(value)
    is_digest = len(text) >= _LONG and all(letter in "0123456789abcdef" for letter in text)
    return f"{text[:12]}..." if is_digest else text
