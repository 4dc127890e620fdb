"""Layers unpacked on a node before a sandbox asks for them: bases, then what most rows stand on, within the budget.

Of the shared store each file is opened once, and read whole into a folder of the node; everything else (verifying,
looking into the catalogue, unpacking) happens there. The operations on the store are therefore few and known before:
one for the rows and one for the manifest; where a layer has to be unpacked, two for the list of catalogue files and one
for each of them; and one for each base and for each layer that has a file of its own (small ones are in the catalogue).
"""

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leonardo.assets.archives import Archives
from leonardo.assets.cache import LayerCache
from leonardo.assets.catalogue import Catalogue
from leonardo.assets.manifest import SetUpRecord, read_manifest
from leonardo.assets.nodelayers import NodeLayers, layers_folder
from leonardo.assets.nodestates import NodeStates
from leonardo.assets.sharedfiles import SharedFiles
from leonardo.errors import LeonardoError
from leonardo.sandbox.driver import Driver

_UNPACKED = 4
"""How many times larger a layer may be unpacked than compressed (3.3 for packages), where no record says its size."""

_SPARE = 1 << 28  # bytes that are left free on the node's disk


@dataclass
class Staged:
    """What was done.

    Attributes:
        states: prepared states that were wanted.
        layers: layers (bases too) that are unpacked now, of ``wanted``; ``new`` of them by this.
        bytes: of the new ones, unpacked.
        read_bytes: from the shared file system.
        operations: on the shared file system, see :class:`~leonardo.assets.sharedfiles.SharedFiles`; the caller's.
        skipped: layers that could not be unpacked, a line each.
        reason: why it ended before the last layer; "" where it did not.
        seconds: in all.
    """

    states: int = 0
    layers: int = 0
    wanted: int = 0
    new: int = 0
    bytes: int = 0
    read_bytes: int = 0
    operations: int = 0
    skipped: list[str] = field(default_factory=list)
    reason: str = ""
    seconds: float = 0.0

    def sentence(self) -> str:
        """For people."""
        left = f"; {self.reason}" if self.reason else ""
        damaged = f"; {len(self.skipped)} could not be: {self.skipped[0]}" if self.skipped else ""
        return (
            f"{self.layers} of {self.wanted} layers are unpacked, {self.new} of them now ({self.bytes / 1e6:.1f} MB in "
            f"{self.seconds:.1f} s, {self.operations} operations on the shared file system){left}{damaged}"
        )

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


def stage(
    shared: SharedFiles,
    node_cache: Path,
    driver: Driver,
    states: Sequence[str],
    most_bytes: int | None,
    staged: Staged,
) -> None:
    """Unpack what ``states`` stand on. What was done is in ``staged`` at every moment.

    Args:
        shared: the store.
        node_cache: the node's folder.
        driver: unpacks.
        states: digests, once for each row that has the state: what more rows have is unpacked first.
        most_bytes: what layers may take on the node, with those that are there; None for no bound but the disk's.
        staged: filled in.

    Raises:
        LeonardoError, OSError: the store, the node's disk or the driver.
    """
    began = time.monotonic()
    node_cache.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=node_cache, prefix=".staging-") as place, ExitStack() as held:
            _Staging(shared, node_cache, driver, most_bytes, staged, Path(place), held).run(states)
    finally:
        staged.seconds = round(time.monotonic() - began, 2)


class _Staging:
    def __init__(
        self,
        shared: SharedFiles,
        node_cache: Path,
        driver: Driver,
        most_bytes: int | None,
        staged: Staged,
        place: Path,
        held: ExitStack,
    ) -> None:
        self._shared, self._staged, self._place, self._held = shared, staged, place, held
        self._most_bytes, self._node_cache = most_bytes, node_cache
        self._states = NodeStates(node_cache, shared.root)
        self._cache = LayerCache(layers_folder(node_cache, driver), driver.remove, most_bytes)
        self._catalogue = Catalogue(place / "catalogue")
        self._archives = Archives(place / "layers", self._catalogue, place / "making")
        self._layers = NodeLayers(driver, self._archives, self._cache)
        self._sizes: dict[str, int] = {}
        for name in ("layers", "catalogue", "bases"):
            (place / name).mkdir()

    def run(self, states: Sequence[str]) -> None:
        entries = self._entries(states)
        bases = _by_use(entries[state]["base"] for state in states if state in entries)
        layers = _by_use(
            digest
            for state in states
            if state in entries
            for digest in SetUpRecord.from_json(entries[state]["set_up"]).layers
        )
        there = self._cache.layers()
        self._staged.states = len(entries)
        self._staged.wanted = len(bases) + len(layers)
        self._staged.layers = sum(there.get(digest, 0) > 0 for digest in (*bases, *layers))
        taken = sum(there.values())
        missing = [digest for digest in layers if not there.get(digest)]
        if missing:
            self._copy_catalogue()
        for digest in bases:
            if not there.get(digest):
                taken = self._one(digest, taken, self._base)
                if self._staged.reason:
                    return
        for digest in missing:
            taken = self._one(digest, taken, self._layer)
            if self._staged.reason:
                return

    def _entries(self, states: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The wanted states' entries, which the node's other processes then find here."""
        manifest = self._place / "manifest.json"
        self._shared.copy("manifest.json", manifest)
        wanted = set(states)
        every = read_manifest(manifest).values()
        entries = {entry["prepared"]: entry for entry in every if entry.get("prepared") in wanted}
        self._states.add(entries)
        return entries

    def _copy_catalogue(self) -> None:
        for name in self._shared.names("catalogue"):
            if name.endswith(".db"):
                self._shared.copy(f"catalogue/{name}", self._place / "catalogue" / name)
        self._sizes = {record.delta: record.unpacked_bytes for record in self._catalogue.records() if record.delta}

    def _one(self, digest: str, taken: int, unpack: Callable[[str, int], None]) -> int:
        """Unpack a layer where there is room for it. Returns what all layers take then."""
        room = shutil.disk_usage(self._node_cache).free - _SPARE
        if self._most_bytes is not None:
            room = min(room, self._most_bytes - taken)
        try:
            unpack(digest, room)
        except _NoRoom:
            self._staged.reason = f"the rest does not fit: {taken / 1e6:.0f} MB are taken"
            return taken
        except (LeonardoError, FileNotFoundError) as error:
            self._staged.skipped.append(f"{digest[:12]}: {error}")
            return taken
        size = self._cache.size(digest)
        self._staged.new += 1
        self._staged.layers += 1
        self._staged.bytes += size
        return taken + size

    def _base(self, digest: str, room: int) -> None:
        """A base, which stays until the staging ends: nothing that comes later may put it out."""
        archive = self._place / "bases" / f"{digest}.tar"
        try:
            if self._shared.copy(f"bases/{digest}.tar", archive) > room:
                raise _NoRoom
            self._held.enter_context(self._layers.using(archive, digest, (), {}))
        finally:
            archive.unlink(missing_ok=True)

    def _layer(self, digest: str, room: int) -> None:
        path = self._archives.path(digest)
        if self._sizes.get(digest, 0) > room:
            raise _NoRoom
        try:
            small = self._archives.small(digest)
            size = small if small is not None else self._shared.copy(f"layers/{path.name}", path)
            if digest not in self._sizes and _UNPACKED * size > room:
                raise _NoRoom
            self._layers.unpack(digest)
        finally:
            path.unlink(missing_ok=True)


class _NoRoom(Exception):
    """What comes next would not fit."""


def _by_use(digests: Iterable[str]) -> list[str]:
    """Each once, those that are there most often first."""
    return [digest for digest, _ in Counter(digests).most_common()]
