"""Garbage collection: what no task of the manifest refers to, counted first and removed only when asked."""

import shutil
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from leonardo.assets.manifest import SetUpRecord, damaged_manifest, read_manifest
from leonardo.assets.store import AssetStore
from leonardo.errors import InputError
from leonardo.files import write_json
from leonardo.holding import taken

_FORMER = ("deltas", "set-ups", "logs")  # a file each a task, before there was a catalogue


@dataclass(frozen=True)
class Garbage:
    """What would go, and what it is worth.

    Attributes:
        layers: digest -> bytes of layers that nothing refers to.
        bases: likewise of base images.
        records: keys of set-ups that nothing refers to.
        tasks: manifest entries (task digests) that were not asked to be kept, or stand on what is not there.
        unpacked: digest -> bytes of unpacked layers that go with their archives, or have none.
        former: folders of stores as they once were.
        references: digest -> how many tasks stand on a layer or base that stays.
    """

    layers: dict[str, int]
    bases: dict[str, int]
    records: tuple[str, ...]
    tasks: tuple[str, ...]
    unpacked: dict[str, int]
    former: tuple[str, ...] = ()
    references: dict[str, int] = field(default_factory=dict)

    @property
    def figures(self) -> dict[str, int]:
        """Counts and bytes."""
        return {
            "layers": len(self.layers),
            "bases": len(self.bases),
            "records": len(self.records),
            "tasks": len(self.tasks),
            "unpacked": len(self.unpacked),
            "former": len(self.former),
            "bytes": sum((*self.layers.values(), *self.bases.values(), *self.unpacked.values())),
            "layers_kept": len(self.references),
        }


def find_garbage(store: AssetStore, keep: Collection[str] | None = None) -> Garbage:
    """Look what nothing refers to. ``keep``: digests of the tasks that stay; all of the manifest if None."""
    manifest = read_manifest(store.root / "manifest.json")
    stored, bases = store.archives.stored(), _bases(store)
    there = stored.keys() | bases.keys()
    kept = {
        digest: entry
        for digest, entry in manifest.items()
        if (keep is None or digest in keep) and there >= _stands_on(entry)
    }
    references: Counter[str] = Counter()
    keys: set[str] = set()
    for entry in kept.values():
        keys.add(entry["set_up"]["key"])
        references.update(_stands_on(entry))
    records = {record.key: record for record in store.catalogue.records()}
    # a record of a package layer stays with its layer
    gone = {key for key, record in records.items() if key not in keys and not _stands(record, references)}
    return Garbage(
        layers={digest: size for digest, size in stored.items() if digest not in references},
        bases={digest: size for digest, size in bases.items() if digest not in references},
        records=tuple(sorted(gone)),
        tasks=tuple(sorted(manifest.keys() - kept.keys())),
        unpacked={digest: size for digest, size in store.cache.layers().items() if digest not in references},
        former=tuple(name for name in _FORMER if (store.root / name).is_dir()),
        references=dict(references),
    )


def _require_manifest(store: AssetStore) -> None:
    """Without a whole one all that there is would look like garbage. Raises InputError."""
    path = store.root / "manifest.json"
    if (damaged := damaged_manifest(path)) is not None:
        raise InputError(
            f"{damaged} is damaged, and what it referred to would go: nothing is removed",
            "Build the rows that are to stay (what is there is not built again), then remove that file",
        )
    if not path.exists() and store.archives.stored():
        raise InputError(
            f"{store.root} has layers and no manifest.json: nothing is removed",
            "Build the rows that are to stay (what is there is not built again), or remove the store",
        )


def collect(store: AssetStore, keep: Collection[str] | None = None) -> Garbage:
    """Remove what nothing refers to. Returns what was removed; an unpacked layer that is in use stays with its archive.

    Raises:
        InputError: a build or a run works on the store, or its manifest is damaged or gone. Nothing is removed then.
    """
    with _nobody_else(store):
        _require_manifest(store)
        garbage = find_garbage(store, keep)
        unpacked = {digest: size for digest, size in garbage.unpacked.items() if store.cache.remove(digest)}
        used = garbage.unpacked.keys() - unpacked.keys()
        layers = {digest: size for digest, size in garbage.layers.items() if digest not in used}
        bases = {digest: size for digest, size in garbage.bases.items() if digest not in used}
        if garbage.tasks:  # first what refers, then what is referred to: a kill between leaves no reference to nothing
            manifest = read_manifest(store.root / "manifest.json")
            kept = {digest: entry for digest, entry in manifest.items() if digest not in garbage.tasks}
            write_json(store.root / "manifest.json", {"tasks": kept})
        store.catalogue.remove(garbage.records, layers)
        for digest in layers:
            store.archives.remove_file(digest)
        for name in garbage.former:
            shutil.rmtree(store.root / name)
        for digest in bases:
            (store.root / "bases" / f"{digest}.tar").unlink(missing_ok=True)
        return Garbage(**asdict(garbage) | {"unpacked": unpacked, "layers": layers, "bases": bases})


def _stands_on(entry: dict[str, Any]) -> set[str]:
    return {*SetUpRecord.from_json(entry["set_up"]).layers, *([entry["base"]] if entry.get("base") else [])}


def _stands(record: SetUpRecord, references: Collection[str]) -> bool:
    return bool(record.layers) and all(digest in references for digest in record.layers)


def _bases(store: AssetStore) -> dict[str, int]:
    return {path.stem: path.stat().st_size for path in (store.root / "bases").glob("*.tar")}


@contextmanager
def _nobody_else(store: AssetStore) -> Iterator[None]:
    """Hold the lock that builders and whoever has handed out states share."""
    with store.locks.users.open("w") as stream:
        if not taken(stream):
            raise InputError(f"{store.root} is in use by a build or by episodes", "Collect when they have ended")
        yield
