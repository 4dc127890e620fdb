"""An entry of the ledger: its fields, the line that it is, and the digest that the line carries of itself."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, JsonValue

from leonardo.files import sha256_bytes, sha256_file

FIRST = "0" * 64
"""What the first entry holds as the digest of the line before it."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class RecordFile(_Part):
    """A file that an entry came from: where it is, seen from the ledger's folder, and its SHA-256."""

    path: str
    sha256: str


class Judged(_Part):
    """What came of a criterion: the figure, its value (None: not measured), the bound in words."""

    figure: str
    value: JsonValue
    threshold: str
    ok: bool


class Evidence(_Part):
    """What a gate or a stage found. Entries of before this form lack all but the first four and the last three.

    Attributes:
        name: the gate or stage.
        verdict: ``pass`` or ``fail``; ``says`` is the verdict in a sentence.
        figures: what was measured.
        pins: what it was measured on, possibly nested.
        kind: ``stage`` or ``gate``; ``site``: where.
        criteria: each with value, threshold and verdict.
        records: the files that it came from.
        builds_on: digest of the entry whose pass opened this stage, ``""`` where there is none.
        forced: the reason that was given for running without that pass, ``""`` where it was not forced.
        stains: what was forced here or in an entry that this one builds on, a sentence each.
        time: when, UTC, ISO 8601.
        previous: SHA-256 of the line before.
        digest: SHA-256 of this entry's line without this field.
    """

    name: str
    verdict: Literal["pass", "fail"]
    figures: dict[str, JsonValue] = {}
    pins: dict[str, JsonValue] = {}
    says: str = ""
    kind: Literal["stage", "gate", ""] = ""
    site: str = ""
    criteria: tuple[Judged, ...] = ()
    records: tuple[RecordFile, ...] = ()
    builds_on: str = ""
    forced: str = ""
    stains: tuple[str, ...] = ()
    time: str = ""
    previous: str = ""
    digest: str = ""

    def sealed(self) -> "Evidence":
        """The entry with its digest."""
        values = self.model_dump(mode="json", exclude={"digest"})
        return self.model_copy(update={"digest": sha256_bytes(canonical(values))})

    def line(self) -> bytes:
        """The entry as its line, without the end of line."""
        return canonical(self.model_dump(mode="json"))


def canonical(values: dict[str, Any]) -> bytes:
    """The one way in which an entry is written."""
    return json.dumps(values, sort_keys=True, allow_nan=False).encode()


def parse(line: bytes) -> Evidence:
    """The entry of a line. Raises ValueError where it is none, or is not what its own digest names."""
    try:
        values = json.loads(line)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    entry = Evidence.model_validate_json(line)  # pydantic's error is a ValueError
    if entry.digest:
        rest = {name: value for name, value in values.items() if name != "digest"}
        if canonical(values) != line or sha256_bytes(canonical(rest)) != entry.digest:
            raise ValueError("its content is not what its digest names")
    return entry


def record_files(folder: Path, files: Iterable[Path]) -> tuple[RecordFile, ...]:
    """Those of ``files`` that exist, with their hashes, seen from the ledger's ``folder``."""
    base = folder.absolute()
    return tuple(
        RecordFile(path=os.path.relpath(path.absolute(), base), sha256=sha256_file(path))
        for path in files
        if path.is_file()
    )
