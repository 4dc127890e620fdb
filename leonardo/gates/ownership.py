"""Which files of a state came with packages: what is in them is not the task's doing."""

import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from leonardo.gates.trees import Tree
from leonardo.sandbox.backend import SandboxBackend

_MERGED = re.compile(r"/(?:bin|sbin|lib|lib32|lib64|libx32)/")
_CACHE = re.compile(r"(.*)/__pycache__/([^/]+?)\.[a-z]+-\d+(?:\.opt-\d)?\.pyc")
_RECORD = re.compile(r"(.*/)([^/]+\.dist-info)/RECORD")
# what package managers write about packages
_BOOKS = ("/var/lib/dpkg/", "/var/lib/apt/", "/var/cache/apt/", "/var/cache/debconf/", "/var/cache/ldconfig/")


def of_packages(backend: SandboxBackend, tree: Tree) -> set[str]:
    """The paths in ``tree`` that dpkg and pip say are theirs, with Python's caches of them."""
    owned = {path for path in tree if path.startswith(_BOOKS)}
    for line in _read(backend, (path for path in tree if re.fullmatch(r"/var/lib/dpkg/info/[^/]+\.list", path))):
        owned.add(line if line in tree or not _MERGED.match(line) else f"/usr{line}")
    for record in (path for path in tree if path.endswith("/RECORD")):
        if match := _RECORD.fullmatch(record):
            for line in _read(backend, [record]):
                name = line.split(",")[0].strip('"')
                owned.add(name if name.startswith("/") else _joined(match.group(1), name))
    for path in tree:
        if (match := _CACHE.fullmatch(path)) and f"{match.group(1)}/{match.group(2)}.py" in owned:
            owned.add(path)
    return owned


def _read(backend: SandboxBackend, paths: Iterable[str]) -> Iterable[str]:
    for path in paths:
        content = backend.read_file(path)
        text = content if isinstance(content, str) else content.decode(errors="replace")
        yield from text.splitlines()


def _joined(folder: str, name: str) -> str:
    parts = list(PurePosixPath(folder).parts)
    for part in PurePosixPath(name).parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return str(PurePosixPath(*parts))
