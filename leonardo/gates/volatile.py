"""What two builds of one definition may differ in: data (``launch/gates/parity.yaml``), each entry with its reason."""

import fnmatch
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from leonardo.errors import InputError
from leonardo.gates.trees import ONLY_IN_FULL, ONLY_IN_PREPARED, Difference, glob
from leonardo.settings import read_yaml, wrong_setting

VOLATILE = Path(__file__).parents[2] / "launch" / "gates" / "parity.yaml"

Aspect = Literal["only-in-full", "only-in-prepared", "kind", "mode", "owner", "size", "content", "attributes"]
Read = Callable[[str], bytes]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class VolatilePath(_Strict):
    """Paths that may differ in some aspects; with ``same`` only so far as the contents are equal otherwise."""

    path: str
    aspects: tuple[Aspect, ...] = Field(min_length=1)
    same: Literal["bytecode", "shadow", "apt-states", ""] = ""
    reason: str = Field(min_length=1)


class VolatileVariable(_Strict):
    """Variables that may differ; with ``value`` only where it is what the full image has."""

    name: str
    value: str = ""
    reason: str = Field(min_length=1)


class Volatile(_Strict):
    """The list."""

    version: int
    paths: tuple[VolatilePath, ...] = ()
    environment: tuple[VolatileVariable, ...] = ()


def load_volatile(path: Path = VOLATILE) -> Volatile:
    """Read a list.

    Raises:
        InputError: it is none; names the file and the setting.
    """
    try:
        return Volatile.model_validate(read_yaml(path))
    except ValidationError as error:
        first = error.errors()[0]
        what = wrong_setting(path, first["loc"], first["msg"]).what
        raise InputError(f"{what}; it is no list of volatile paths", f"See {VOLATILE.name}") from error


@dataclass(frozen=True)
class Sorted:
    """Differences, told apart.

    Attributes:
        found: those that nothing allows.
        allowed: how many each entry of the list covered, by its path.
    """

    found: list[Difference]
    allowed: dict[str, int]


def sort_paths(volatile: Volatile, differences: list[Difference], prepared: Read, full: Read) -> Sorted:
    """Take what the list allows from ``differences``. ``prepared`` and ``full`` read a file of the two states."""
    patterns = [(glob(entry.path), entry) for entry in volatile.paths]
    found, allowed = [], {}
    for difference in differences:
        entry = next(
            (
                entry
                for pattern, entry in patterns
                if difference.aspect in entry.aspects and pattern.fullmatch(difference.path)
            ),
            None,
        )
        if entry and (not entry.same or _is_same(entry.same, difference.path, prepared, full)):
            allowed[entry.path] = allowed.get(entry.path, 0) + 1
        else:
            found.append(difference)
    return Sorted(found, allowed)


def is_volatile(volatile: Volatile, name: str, value: str | None) -> bool:
    """Whether the list allows a variable to differ that the full image has with ``value``."""
    return any(fnmatch.fnmatchcase(name, entry.name) and entry.value in ("", value) for entry in volatile.environment)


def environment_differences(
    volatile: Volatile, prepared: Mapping[str, str], full: Mapping[str, str]
) -> list[Difference]:
    """Every variable in which two environments differ and that the list does not allow."""
    found = []
    for name in sorted({*prepared, *full}):
        ours, theirs = prepared.get(name), full.get(name)
        if ours == theirs or is_volatile(volatile, name, theirs):
            continue
        aspect = ONLY_IN_FULL if ours is None else ONLY_IN_PREPARED if theirs is None else "value"
        found.append(Difference(f"${name}", aspect, ours or "", theirs or ""))
    return found


def _is_same(how: str, path: str, prepared: Read, full: Read) -> bool:
    normal = {"bytecode": _without_source_time, "shadow": _without_days, "apt-states": _automatic}[how]
    try:
        return normal(prepared(path)) == normal(full(path))
    except OSError:
        return False


def _without_source_time(content: bytes) -> bytes:
    """PEP 552: magic number, flags, and where the flags are 0 the source's time and size."""
    return content[:8] + content[12:] if content[4:8] == bytes(4) else content


def _without_days(content: bytes) -> bytes:
    """shadow(5): the third field of a line is the day of the last change."""
    return re.sub(rb"(?m)^([^:\n]*:[^:\n]*:)\d*:", rb"\1:", content)


def _automatic(content: bytes) -> bytes:
    """apt's list of packages that came for another's sake, sorted."""
    paragraphs = {paragraph.strip(b"\n") for paragraph in content.split(b"\n\n")}
    return b"\n\n".join(sorted(paragraph for paragraph in paragraphs if b"\nAuto-Installed: 1" in paragraph))
