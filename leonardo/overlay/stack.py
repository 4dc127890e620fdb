"""The stack's files: ``series``, the patches it lists, and ``upstream.lock``."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from leonardo.errors import InputError
from leonardo.files import digest_of, sha256_bytes
from leonardo.overlay.entries import Entry
from leonardo.overlay.patchfile import Finding, Patch, blob_id, read_patch

SERIES = "series"
LOCK = "upstream.lock"
_LOCK_HEAD = """\
# The commit of upstream that the patches insert into, and the files they touch as they are there: mode, blob id, path.
# Written by the overlay's own commands; mode and id 0 say that upstream has no such file.
"""


@dataclass(frozen=True)
class Lock:
    """The pinned commit, and path -> entry of every touched file in it."""

    commit: str
    files: Mapping[str, Entry] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str, where: str = LOCK) -> "Lock":
        """Read a lock file. Raises InputError, with the line."""
        commit, files = "", {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or line.startswith("#"):
                continue
            if words[0] == "commit" and len(words) == 2 and re.fullmatch("[0-9a-f]{40}", words[1]) and not commit:
                commit = words[1]
            elif len(words) == 3 and re.fullmatch(r"\d{6} [0-9a-f]{40}", " ".join(words[:2])) and words[2] not in files:
                files[words[2]] = Entry(words[0], words[1])
            else:
                raise InputError(f"{where} line {number} is neither a commit nor a file", "Restore it from git")
        if not commit:
            raise InputError(f"{where} names no commit", "Restore it from git")
        return cls(commit, files)

    def render(self) -> str:
        """The lock file's text."""
        lines = [f"{entry.mode} {entry.blob} {path}\n" for path, entry in sorted(self.files.items())]
        return f"{_LOCK_HEAD}commit {self.commit}\n{''.join(lines)}"


@dataclass(frozen=True)
class Stack:
    """The stack as its files say.

    Attributes:
        folder: where they are.
        lock: the pinned commit and its touched files.
        names: the patches, in order.
        texts: name -> content of each patch that is there.
        stray: patch files that the series does not list.
    """

    folder: Path
    lock: Lock
    names: tuple[str, ...]
    texts: Mapping[str, bytes]
    stray: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Names the stack by its content; a pin of every run."""
        return digest_of([self.lock.commit, [[name, sha256_bytes(self.texts[name])] for name in self.names]])

    @property
    def patches(self) -> list[Patch]:
        """The patches as read, in order; one that is listed twice is read once."""
        return [read_patch(name, self.texts[name]) for name in dict.fromkeys(self.names) if name in self.texts]


def read_stack(folder: Path) -> Stack:
    """Read the stack's files. Raises InputError where series or lock cannot be read."""
    series = folder / SERIES
    if not series.is_file() or not (folder / LOCK).is_file():
        raise InputError(f"{folder} holds no patch stack ({SERIES} and {LOCK})", "Run it in the project's folder")
    lines = (line.partition("#")[0].strip() for line in series.read_text().splitlines())
    names = tuple(line for line in lines if line)
    found = {path.name: path.read_bytes() for path in sorted(folder.glob("*.patch"))}
    lock = Lock.parse((folder / LOCK).read_text(), str(folder / LOCK))
    return Stack(folder, lock, names, found, tuple(name for name in found if name not in names))


def series_findings(stack: Stack) -> list[Finding]:
    """Where series and patch files do not agree."""
    findings = []
    for name in dict.fromkeys(stack.names):
        if stack.names.count(name) > 1:
            findings.append(Finding(SERIES, "listed twice", name))
        if name not in stack.texts:
            findings.append(Finding(SERIES, "missing file", f"{name} is listed, but not there"))
    findings += [Finding(SERIES, "unlisted file", f"{name} is there, but not listed") for name in stack.stray]
    numbers = [name[:4] for name in dict.fromkeys(stack.names)]
    for before, after in pairwise(numbers):
        if after <= before:
            findings.append(Finding(SERIES, "order broken", f"{after} follows {before}: numbers must ascend"))
    return findings


def unpatched(stack: Stack, tree: Path) -> list[str]:
    """The touched files below ``tree`` that are not as the whole stack leaves them. Needs no git there."""
    final = {change.path: change.new for patch in stack.patches for change in patch.changes}

    def is_final(file: Path, blob: str) -> bool:
        return file.is_file() and blob_id(file.read_bytes()) == blob

    return [path for path, blob in final.items() if not is_final(tree / path, blob)]
