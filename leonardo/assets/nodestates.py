"""What this node knows of a store's prepared states, so that processes on it need not read the store's manifest."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leonardo.files import sha256_bytes, write_json


class NodeStates:
    """Entries of a store's manifest, by the digests of their prepared states, in a file on the node.

    A state's digest names its base, layers and environment, so that an entry that was ever right stays right.

    Args:
        node_cache: the node's folder of unpacked layers; None where there is none, and nothing is known then.
        store: the store's root.
    """

    def __init__(self, node_cache: Path | None, store: Path) -> None:
        name = sha256_bytes(os.fsencode(store.absolute()))[:16]
        self._path = node_cache / "states" / f"{name}.json" if node_cache else None

    def read(self) -> dict[str, dict[str, Any]]:
        """Digest -> entry; empty where nothing is known, or another user wrote it."""
        if self._path is None:
            return {}
        try:
            with self._path.open("rb") as stream:
                if os.fstat(stream.fileno()).st_uid != os.getuid():
                    return {}
                found = json.load(stream)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def add(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Keep more entries. Raises OSError."""
        if self._path is not None:
            write_json(self._path, self.read() | dict(entries))
