"""Files that are whole or absent: write to a temporary name, fsync, rename. And the digests that name content."""

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from leonardo.errors import InputError

_DAMAGED = "It was damaged, or written by something else"


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write ``content`` to ``path`` so that a reader or a crash sees the old file or the new one, never a part."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename = str(path)  # a full disk's error names nothing
        raise


def require_writable(folder: Path) -> None:
    """Try that ``folder`` can be made and written to, before long work whose outcome goes there. Leaves nothing.

    Raises:
        InputError: it cannot; says why.
    """
    try:
        place = folder.absolute()
        while not place.exists():
            place = place.parent
        with tempfile.TemporaryFile(dir=place) as stream:
            stream.write(b"x")
            stream.flush()
    except OSError as error:
        raise InputError(
            f"{folder} cannot be written to ({error.strerror})", "Make room there, or name another folder"
        ) from error


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically. NaN and infinity are refused (ValueError): they are not JSON."""
    write_atomic(path, json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """What a JSON file holds, read strictly: NaN and infinity are not JSON.

    Raises:
        FileNotFoundError: there is none.
        InputError: it cannot be read, or holds no JSON; names it.
    """
    try:
        return json.loads(path.read_bytes(), parse_constant=_refuse)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", "Make it readable, or remove it") from error
    except RecursionError as error:
        raise InputError(f"{path} is nested too deeply", _DAMAGED) from error
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({' '.join(str(error).split())[:200]})", _DAMAGED) from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def sha256_bytes(data: bytes) -> str:
    """Hex SHA-256 of ``data``."""
    return hashlib.sha256(data).hexdigest()


def sha256_file(path: Path) -> str:
    """Hex SHA-256 of a file's content."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest_of(value: Any) -> str:
    """Hex SHA-256 of a JSON value in canonical form (sorted keys, no spaces)."""
    return sha256_bytes(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode())


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted name, so that what is said of them names the very setting."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def machine() -> dict[str, Any]:
    """What a figure was measured on."""
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "root": os.getuid() == 0,
    }


def write_verdict(path: Path, ok: bool, figures: dict[str, Any], pins: dict[str, Any], **more: Any) -> None:
    """Write a machine-readable verdict (``out/<name>.json``): whether it is ok, its figures, pins and machine.

    ``more`` is what some verdicts have besides: criteria by name, the verdict in words.
    """
    write_json(path, {"ok": ok, "figures": figures, "pins": pins, "machine": machine(), **more})
