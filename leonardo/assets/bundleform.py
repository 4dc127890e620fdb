"""The form of a bundle (:mod:`leonardo.assets.bundle`): its list of members, records and manifest, read strictly.

Whoever made an archive decides what is in it: nothing of it is taken before it has this form.
"""

import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from leonardo.assets.manifest import ManifestEntry, SetUpRecord
from leonardo.errors import InputError

CONTENTS = "bundle.json"
VERSION = 1
RECORDS = "records.jsonl"
MANIFEST = "manifest.json"

_MOST = 256 << 20  # bytes of the list, of records and of the manifest, which are read at once
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PLACES = re.compile(
    r"layers/(?P<layer>[0-9a-f]{64})|bases/(?P<base>[0-9a-f]{64})\.tar|bases/\w[\w.@+-]*\.json", re.ASCII
)
_FAULTS = (ValueError, TypeError, KeyError, AttributeError, RecursionError)
_ENTRIES, _RECORD = TypeAdapter(ManifestEntry), TypeAdapter(SetUpRecord)


@dataclass(frozen=True)
class Member:
    """A file of a bundle; ``digest`` is the SHA-256 of its bytes, or of a layer's uncompressed content."""

    name: str
    size: int
    digest: str


def read_contents(source: Path, archive: tarfile.TarFile, info: tarfile.TarInfo) -> dict[str, Member]:
    """The list that a bundle begins with, by name. Raises InputError where it is no bundle."""
    if info.name != CONTENTS or not _is_plain(info) or info.size > _MOST:
        raise InputError(f"{source} is no bundle: it does not begin with {CONTENTS}", "make assets-bundle makes one")
    try:
        values = json.loads(_content(archive, info))
        version = values["version"]
        members = [Member(**value) for value in values["members"]] if version == VERSION else []
    except _FAULTS as error:
        raise InputError(f"{source} is no bundle: {CONTENTS} is no list of members", "Write it again") from error
    if version != VERSION:
        raise InputError(f"{source} is a bundle of version {version!r}, and {VERSION} is read here", "Write it again")
    for member in members:
        _require_place(source, member)
    if len({member.name for member in members}) < len(members):
        raise InputError(f"{source} is no bundle: a member is listed twice", "Write it again")
    return {member.name: member for member in members}


def listed(source: Path, info: tarfile.TarInfo, members: dict[str, Member]) -> Member:
    """What the list says of a file of the archive. Raises InputError where it is another, or no file."""
    member = members.get(info.name)
    if member is None or not _is_plain(info) or member.size != info.size:
        raise InputError(f"{source} is no bundle: {info.name} is not what its list says", "Write it again")
    return member


def read_records(source: Path, data: bytes) -> Iterator[SetUpRecord]:
    """The records of set-ups. Raises InputError."""
    for line in data.splitlines():
        try:
            record = SetUpRecord.from_json(json.loads(line))
            _RECORD.validate_python(asdict(record))
        except _FAULTS as error:
            raise InputError(f"{source} is no bundle: {RECORDS} holds what is no record", "Write it again") from error
        yield record


def read_entries(source: Path, data: bytes) -> list[ManifestEntry]:
    """The entries of the manifest. Raises InputError."""
    try:
        values = json.loads(data)
        entries = [ManifestEntry(**value | {"set_up": SetUpRecord.from_json(value["set_up"])}) for value in values]
        for entry in entries:
            _ENTRIES.validate_python(asdict(entry))
    except _FAULTS as error:
        raise InputError(f"{source} is no bundle: {MANIFEST} holds what is no entry", "Write it again") from error
    return entries


def require_base_record(source: Path, name: str, data: bytes) -> None:
    """It says which archive beside it stands for an image. Raises InputError."""
    try:
        values: Any = json.loads(data)
        right = values["archive"] == f"{values['digest']}.tar" and _DIGEST.fullmatch(values["digest"])
    except _FAULTS:
        right = False
    if not right:
        raise InputError(f"{source} is no bundle: {name} is no record of a base", "Write it again")


def _require_place(source: Path, member: Member) -> None:
    """A name and sizes that a store has a place for, and a content that is named by its own digest."""
    if not isinstance(member.name, str) or not isinstance(member.digest, str) or type(member.size) is not int:
        raise InputError(f"{source} is no bundle: {CONTENTS} is no list of members", "Write it again")
    if member.name.startswith("/") or ".." in member.name.split("/"):
        raise InputError(f"{source} is no bundle: {member.name} would lie outside of the store", "Write it again")
    if member.size < 0 or not _DIGEST.fullmatch(member.digest):
        raise InputError(f"{source} is no bundle: {member.name} has no size or digest", "Write it again")
    place = _PLACES.fullmatch(member.name)
    named = (place["layer"] or place["base"] or member.digest) if place else ""
    if member.name not in (RECORDS, MANIFEST) and named != member.digest:
        raise InputError(f"{source} is no bundle: {member.name} has no place in a store", "Write it again")
    if not member.name.startswith(("layers/", "bases/")) and member.size > _MOST:
        raise InputError(f"{source} is no bundle: {member.name} is of {member.size} bytes", "Write it again")


def _is_plain(info: tarfile.TarInfo) -> bool:
    """A file with all its bytes: one with holes may be written out to any size."""
    return info.isreg() and not info.issparse()


def _content(archive: tarfile.TarFile, info: tarfile.TarInfo) -> bytes:
    content = archive.extractfile(info)
    return content.read() if content else b""
