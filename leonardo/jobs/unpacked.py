"""What the nodes of a job said of the layers that they unpacked ahead: a file a node in the run's folder."""

import json
from pathlib import Path
from typing import Any

_PREFIX = "unpacked-"


def unpacked_file(run: Path, node: str) -> Path:
    """A node's file."""
    return run / f"{_PREFIX}{node}.json"


def read_unpacked(run: Path) -> dict[str, dict[str, Any]]:
    """Node -> what it unpacked, of those that have said so."""
    found = {}
    for path in sorted(run.glob(f"{_PREFIX}*.json")):
        try:
            found[path.stem.removeprefix(_PREFIX)] = dict(json.loads(path.read_bytes()))
        except (OSError, ValueError):
            continue
    return found
