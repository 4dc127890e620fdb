"""What the nodes of a job said of the layers that they unpacked ahead: a file a node in the run's folder."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

_PREFIX = "unpacked-"


class _Unpacked(BaseModel):
    """What is relied on of a file; one that is damaged is passed over."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    layers: int
    wanted: int
    seconds: float
    operations: int


def unpacked_file(run: Path, node: str) -> Path:
    """A node's file."""
    return run / f"{_PREFIX}{node}.json"


def read_unpacked(run: Path) -> dict[str, dict[str, Any]]:
    """Node -> what it unpacked, of those that have said so."""
    found = {}
    for path in sorted(run.glob(f"{_PREFIX}*.json")):
        with suppress(OSError, ValidationError):
            said = _Unpacked.model_validate_json(path.read_bytes(), strict=True)
            found[path.stem.removeprefix(_PREFIX)] = said.model_dump()
    return found
