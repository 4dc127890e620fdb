"""Whether everything that a job needs is there without a network, and at the revision that it should be."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from leonardo.errors import InputError
from leonardo.files import read_json
from leonardo.hooks.sources import lacking
from leonardo.jobs.findings import Finding

PIN = "pin.json"
"""In a model's or data set's folder: what the bundle says it is, name and revision."""

_BRING = "Bring it: make bundle where there is a network, make unbundle FROM=dir SITE=name here"


def needs_findings(needs: Mapping[str, str]) -> Iterator[Finding]:
    """Files and folders that are not there, or are empty."""
    for name, remedy in needs.items():
        path = Path(name)
        if not path.exists():
            yield Finding("paths.missing", f"{name} is not there", remedy)
        elif path.is_dir() and not any(path.iterdir()):
            yield Finding("paths.missing", f"{name} is empty", remedy)


def model_findings(folder: Path, name: str, start: str = "", revision: str = "") -> Iterator[Finding]:
    """What a model's folder lacks of a whole checkpoint, and whether it is the one asked for (:func:`pin_findings`)."""
    try:
        gone = lacking(folder)
    except InputError as error:
        yield Finding("offline.model", f"model {name}: {error.what}", _BRING)
    else:
        if gone:
            yield Finding("offline.model", f"model {name}: {folder} lacks {gone}", _BRING)
        elif not any((folder / tokenizer).is_file() for tokenizer in ("tokenizer.json", "tokenizer.model")):
            yield Finding("offline.model", f"model {name}: {folder} has no tokenizer", _BRING)
    if folder.is_dir():
        yield from pin_findings(folder, name, start, revision)


def pin_findings(folder: Path, name: str, start: str, revision: str) -> Iterator[Finding]:
    """Whether a model's folder says that it holds what is asked for.

    Args:
        name: of the model, for the person.
        start: a name of the hub, which a folder need not know (a person may have brought it); "" for any.
        revision: of it, which the folder has to know; "" for any.
    """
    pin = pinned(folder)
    if start and pin.name not in ("", start):
        yield Finding(
            "pins.model",
            f"model {name} is {start}, {folder} holds {pin.name}",
            "Bring the one asked for, or change start of the model file",
        )
    elif revision and pin.revision != revision:
        yield Finding(
            "pins.model",
            f"model {name} is pinned to {revision[:12]}, {folder} holds {pin.revision[:12] or 'an unknown revision'}",
            "Bring the pinned one, or change revision of the model file",
        )


class Pin(NamedTuple):
    """What a folder says that it holds; "" where it does not say."""

    name: str = ""
    revision: str = ""


def pinned(folder: Path) -> Pin:
    """What a folder's pin.json says; nothing where there is none, or it is none."""
    try:
        said = read_json(folder / PIN)
    except (OSError, InputError):
        return Pin()
    given = (said.get(name) if isinstance(said, dict) else None for name in Pin._fields)
    return Pin(*(value if isinstance(value, str) else "" for value in given))


def environment_findings(python: Path, lock: Path, wheels: Path | None) -> Iterator[Finding]:
    """Whether upstream's environment is whole: every locked package installed, or at least its wheel there."""
    environment = python.parent.parent
    if (environment / ".ready").is_file():
        packages = {
            _package(entry.name.removesuffix(".dist-info"))
            for entry in environment.glob("lib/python*/site-packages/*.dist-info")
        }
        gone = [f"{name}=={version}" for name, version in locked(lock) if f"{name}-{version}" not in packages]
        if gone:
            yield Finding(
                "offline.wheels", f"{environment} lacks {gone[0]}{_more(gone)}", "Make it again: make upstream-env"
            )
        return
    if wheels is None or not wheels.is_dir():
        yield Finding(
            "offline.wheels",
            f"upstream's environment {environment} is not made, and there is no folder of wheels",
            "make upstream-wheels WHEELS=dir where there is a network, then make upstream-env WHEELS=dir here",
        )
        return
    gone = missing_wheels(lock, wheels)
    if gone:
        yield Finding("offline.wheels", f"{wheels} lacks the wheel of {gone[0]}{_more(gone)}", _BRING)
    else:
        yield Finding(
            "offline.wheels",
            f"upstream's environment {environment} is not made; all its wheels are there",
            f"make upstream-env WHEELS={wheels}",
        )


def missing_wheels(lock: Path, wheels: Path) -> list[str]:
    """The locked packages without a wheel or source archive in ``wheels``."""
    there = set()
    for path in wheels.iterdir():
        if path.suffix == ".whl":
            there.add(_package("-".join(path.name.split("-")[:2])))
        elif path.name.endswith((".tar.gz", ".zip")):
            there.add(_package(re.sub(r"\.(tar\.gz|zip)$", "", path.name)))
    return [f"{name}=={version}" for name, version in locked(lock) if f"{name}-{version}" not in there]


def locked(lock: Path) -> list[tuple[str, str]]:
    """Name, normalized, and version of every package of a lock file; local versions without their mark."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", lock.read_text(), flags=re.MULTILINE)
    return [(_normal(name), version) for name, version in found]


def _package(stem: str) -> str:
    """``name-version`` of a file or folder called so, the name as in :func:`locked`."""
    name, _, version = stem.rpartition("-")
    return f"{_normal(name)}-{version}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def _more(names: list[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
