"""One archive of what a selection of tasks needs, to carry it to where there is no network.

A plain tar: ``bundle.json`` first, which lists all other members with their sizes and digests, then layers, bases and
records. Writing goes on after an interruption where it was, and is verified before the file gets its name. Unpacking
verifies each member before it is put in its place and passes over what is there, so that it can be interrupted, too.
"""

import hashlib
import io
import json
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from leonardo.assets.archives import digest_of_compressed
from leonardo.assets.bundleform import (
    CONTENTS,
    MANIFEST,
    RECORDS,
    VERSION,
    Member,
    listed,
    read_contents,
    read_entries,
    read_records,
    require_base_record,
)
from leonardo.assets.manifest import ManifestEntry, SetUpRecord
from leonardo.assets.progress import BuildProgress
from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.files import require_writable, sha256_bytes, sha256_file, write_atomic
from leonardo.holding import alone_at


@dataclass(frozen=True)
class Brought:
    """What an unpacking did."""

    members: int
    new: int
    tasks: int


def write_bundle(
    store: AssetStore, entries: Sequence[ManifestEntry], target: Path, progress: BuildProgress | None = None
) -> list[Member]:
    """Write what the built ones of ``entries`` need to ``target``; goes on with ``<target>.part`` where there is one.

    One of these entries that is there is verified and left.

    Raises:
        InputError: nothing was built, or ``target`` cannot be written, or another process writes it.
        InfrastructureError: a layer is missing or damaged.
    """
    progress = progress or BuildProgress()
    if target.is_dir():
        raise InputError(f"{target} is a folder", "Name the file that the bundle is to be")
    require_writable(target.parent)
    built = [entry for entry in entries if entry.prepared]
    if not built:
        raise InputError("None of these rows is built", "Build them first")
    with alone_at(target):
        return _write(_sources(store, built), target, progress)


def read_bundle(store: AssetStore, source: Path, progress: BuildProgress | None = None) -> Brought:
    """Put what a bundle holds into the store. What is there and whole is passed over.

    Raises:
        InputError: it is no bundle, is damaged, or ends early; says how many members are in the store by now.
        InfrastructureError: the store is full or cannot be written to, likewise.
    """
    progress = progress or BuildProgress()
    members: dict[str, Member] = {}
    seen: set[str] = set()
    new = tasks = 0
    if not source.is_file():
        raise InputError(f"{source} is no file", "Name a bundle: make assets-bundle makes one")
    require_writable(store.root)
    making = store.root / "making" / "bundle"
    making.mkdir(parents=True, exist_ok=True)
    try:
        with store.turn(progress), tarfile.open(source, "r:") as archive:
            for info in archive:
                if not members:
                    members = read_contents(source, archive, info)
                    progress.start(len(members), "members")
                    continue
                member = listed(source, info, members)
                content = archive.extractfile(info)
                assert content is not None  # it is a file
                if member.name == RECORDS:
                    for record in read_records(source, _verified(source, member, content)):
                        if store.catalogue.record(record.key) != record:
                            store.catalogue.put_record(record, built=False)
                elif member.name == MANIFEST:
                    brought = read_entries(source, _verified(source, member, content))
                    store.add_to_manifest(brought)
                    tasks = len(brought)
                else:
                    new += _place(store, source, member, content)
                seen.add(member.name)
                progress.advance()
    except tarfile.TarError as error:
        raise InputError(
            f"{source} is no bundle, or damaged ({error}); {len(seen)} of {len(members)} members are in the store",
            "Fetch it again; unpacking goes on from there",
        ) from error
    except OSError as error:
        raise InfrastructureError(
            f"{store.root}: {error.strerror}; {len(seen)} of {len(members)} members of {source} are in it",
            "Make room there or make it writable; unpacking goes on from there",
            FailureClass.SPACE,
        ) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    if not members or len(seen) < len(members):
        raise InputError(
            f"{source} ends early: {len(seen)} of {len(members)} members are in the store",
            "Fetch the rest of it; unpacking goes on from there",
        )
    return Brought(len(members), new, tasks)


def _require_room(target: Path, size: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if size > free:
        raise InfrastructureError(
            f"{target.parent} has {free / 1e6:,.0f} MB free, and the bundle needs {size / 1e6:,.0f} more",
            "Make room there, or name another file",
            FailureClass.SPACE,
        )


# --- writing ----------------------------------------------------------------------------------------------------------

_Source = tuple[Member, Callable[[], IO[bytes]]]


def _write(sources: list[_Source], target: Path, progress: BuildProgress) -> list[Member]:
    members = [member for member, _ in sources]
    contents = json.dumps({"version": VERSION, "members": [asdict(member) for member in members]}).encode()
    sources.insert(0, (Member(CONTENTS, len(contents), sha256_bytes(contents)), lambda: io.BytesIO(contents)))
    progress.start(len(sources), "bundled")
    every = [member for member, _ in sources]
    if _whole_part(target, every)[1] == len(every):
        progress.note(f"{target} is there, and verified")
        _verify(target, members)
        return members
    part = target.with_name(f"{target.name}.part")
    position, done = _whole_part(part, every)
    _require_room(target, sum(member.size for member in every[done:]))
    if done:
        progress.note(f"{part} has {done} of {len(sources)} members: going on")
    with part.open("r+b" if done else "wb") as stream:
        stream.seek(position)
        stream.truncate()
        for number, (member, opened) in enumerate(sources):
            if number >= done:
                with opened() as content:
                    _append(stream, member, content)
            progress.advance()
        stream.write(b"\0" * (2 * tarfile.BLOCKSIZE))
    _verify(part, members)
    part.replace(target)
    return members


def _sources(store: AssetStore, entries: Sequence[ManifestEntry]) -> list[_Source]:
    """Members in an order that depends on their names only; references after what they refer to."""
    found: list[_Source] = []
    layers = sorted({digest for entry in entries for digest in entry.set_up.layers})
    for digest in layers:
        content = store.archives.compressed(digest)
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        found.append((Member(f"layers/{digest}", size, digest), _opener(content)))
    for digest in sorted({entry.base for entry in entries}):
        path = store.root / "bases" / f"{digest}.tar"
        found.append((Member(f"bases/{path.name}", path.stat().st_size, digest), _opener(path)))
        for record in sorted(path.parent.glob("*.json")):
            if digest in record.read_text():
                data = record.read_bytes()
                found.append((Member(f"bases/{record.name}", len(data), sha256_bytes(data)), _opener(data)))
    keys = {entry.set_up.key for entry in entries}
    records = [record for record in store.catalogue.records() if record.key in keys or _is_of(record, layers)]
    lines = "".join(json.dumps(asdict(record), sort_keys=True) + "\n" for record in records).encode()
    manifest = json.dumps([asdict(entry) for entry in sorted(entries, key=lambda entry: entry.task_digest)]).encode()
    for name, data in ((RECORDS, lines), (MANIFEST, manifest)):
        found.append((Member(name, len(data), sha256_bytes(data)), _opener(data)))
    return found


def _is_of(record: SetUpRecord, layers: Sequence[str]) -> bool:
    return record.failure is None and record.delta in layers


def _opener(content: bytes | Path) -> Callable[[], IO[bytes]]:
    return lambda: content.open("rb") if isinstance(content, Path) else io.BytesIO(content)


def _append(stream: IO[bytes], member: Member, content: IO[bytes]) -> None:
    info = tarfile.TarInfo(member.name)
    info.size = member.size
    stream.write(info.tobuf(tarfile.PAX_FORMAT))
    shutil.copyfileobj(content, stream, 1 << 20)
    stream.write(b"\0" * (-member.size % tarfile.BLOCKSIZE))


def _whole_part(part: Path, members: Sequence[Member]) -> tuple[int, int]:
    """Where what is whole ends of what was written before, and how many members that is."""
    position = done = 0
    with suppress(OSError, tarfile.TarError):  # it ends anywhere
        size = part.stat().st_size
        with tarfile.open(part, "r:") as archive:
            for info in archive:
                end = info.offset_data + info.size + -info.size % tarfile.BLOCKSIZE
                if end > size or done >= len(members) or (info.name, info.size) != _named(members[done]):
                    break
                if not done and sha256_bytes(archive.extractfile(info).read()) != members[0].digest:  # type: ignore[union-attr]
                    break  # of another selection
                position, done = end, done + 1
    return position, done


def _named(member: Member) -> tuple[str, int]:
    return member.name, member.size


def _verify(part: Path, members: Sequence[Member]) -> None:
    by_name = {member.name: member for member in members}
    try:
        with tarfile.open(part, "r:") as archive:
            for info in archive:
                content = archive.extractfile(info)
                right = info.name == CONTENTS or (content and _digest(info.name, content) == by_name[info.name].digest)
                if not right:
                    raise tarfile.ReadError(f"{info.name} is damaged")
    except tarfile.TarError as error:
        part.unlink()
        raise InputError(f"{part} was damaged ({error}) and is removed", "Write the bundle again") from error


# --- reading ----------------------------------------------------------------------------------------------------------


def _place(store: AssetStore, source: Path, member: Member, content: IO[bytes]) -> bool:
    """Put a layer, a base or its record where it belongs. Returns whether it was not there."""
    folder, _, name = member.name.partition("/")
    if folder == "layers":
        if store.archives.is_whole(member.digest):
            return False
        with tempfile.TemporaryFile(dir=store.root / "making" / "bundle") as copy:
            shutil.copyfileobj(content, copy, 1 << 20)
            copy.seek(0)
            if not store.archives.take(member.digest, copy):
                raise _damaged(source, member)
        return True
    path = store.root / "bases" / name
    if path.is_file() and sha256_file(path) == member.digest:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".json":
        data = _verified(source, member, content)
        require_base_record(source, member.name, data)
        write_atomic(path, data)
        return True
    with tempfile.NamedTemporaryFile(dir=store.root / "making" / "bundle", delete=False) as copy:
        shutil.copyfileobj(content, copy, 1 << 20)
    if sha256_file(Path(copy.name)) != member.digest:
        raise _damaged(source, member)
    Path(copy.name).chmod(0o644)
    Path(copy.name).replace(path)
    return True


def _verified(source: Path, member: Member, content: IO[bytes]) -> bytes:
    data = content.read()
    if sha256_bytes(data) != member.digest:
        raise _damaged(source, member)
    return data


def _damaged(source: Path, member: Member) -> InputError:
    return InputError(
        f"{source}: {member.name} is damaged", "Fetch the bundle again; what was whole before it is in the store"
    )


def _digest(name: str, content: IO[bytes]) -> str:
    if name.startswith("layers/"):
        return digest_of_compressed(content)
    return hashlib.file_digest(content, "sha256").hexdigest()
