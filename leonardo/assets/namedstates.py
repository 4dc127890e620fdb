"""Prepared states by their names, as a trainer on a node asks for them: no task, and nothing built."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from leonardo.assets.manifest import SetUpRecord, read_manifest
from leonardo.assets.nodelayers import NodeLayers
from leonardo.assets.nodestates import NodeStates
from leonardo.assets.prepared import PreparedState
from leonardo.errors import InputError


class NamedStates:
    """The states that this node knows of, else the store's manifest.

    Args:
        store: its root.
        node: what this node knows.
        layers: unpacks them.
        use: called before the store itself is read.
    """

    def __init__(self, store: Path, node: NodeStates, layers: NodeLayers, use: Callable[[], None]) -> None:
        self._store = store
        self._node = node
        self._layers = layers
        self._use = use
        self._entries: dict[str, dict[str, Any]] = {}

    @contextmanager
    def using(self, digest: str) -> Iterator[PreparedState]:
        """The state called ``digest``, unpacked on this node; its layers stay so during the block.

        Raises:
            InputError: there is none of that name.
        """
        entry = self._entry(digest)
        base, record = self._store / "bases" / f"{entry['base']}.tar", SetUpRecord.from_json(entry["set_up"])
        with self._layers.using(base, entry["base"], record.layers, entry["environment"], record.own) as stack:
            yield PreparedState(digest, stack)

    def _entry(self, digest: str) -> dict[str, Any]:
        known = self._entries
        if digest not in known:
            known = self._entries = self._node.read()
        if digest not in known:
            self._use()
            entries = read_manifest(self._store / "manifest.json").values()
            known = self._entries = {entry["prepared"]: entry for entry in entries if entry.get("prepared")}
        if digest not in known:
            raise InputError(f"{self._store} has no prepared state {digest}", "Build it first")
        return known[digest]
