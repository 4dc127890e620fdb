"""File trees as sandboxes list them (:mod:`leonardo.sandbox.listing`), compared path by path and aspect by aspect."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

ASPECTS = ("kind", "mode", "owner", "size", "content", "attributes")
"""What is compared of an entry that both trees have. Times are not: no two builds have the same."""

ONLY_IN_FULL, ONLY_IN_PREPARED = "only-in-full", "only-in-prepared"


@dataclass(frozen=True)
class Entry:
    """One entry of a tree.

    Attributes:
        kind: ``file``, ``folder``, ``link``, ``pipe``, ``socket``, ``character`` or ``block``.
        mode: permission bits.
        owner: ``user:group``, as numbers.
        size: bytes of a file, 0 of all others.
        content: digest of a file, target of a link, numbers of a device.
        attributes: extended attributes (``name=hex`` ...).
    """

    kind: str
    mode: int
    owner: str
    size: int
    content: str
    attributes: str


Tree = Mapping[str, Entry]


@dataclass(frozen=True)
class Difference:
    """One aspect of one path in which two trees differ; or ``only-in-full``, ``only-in-prepared``."""

    path: str
    aspect: str
    prepared: str
    full: str

    def __str__(self) -> str:
        if self.aspect == ONLY_IN_FULL:
            return f"{self.path}: only in the full image ({self.full})"
        if self.aspect == ONLY_IN_PREPARED:
            return f"{self.path}: only in the prepared state ({self.prepared})"
        return f"{self.path}: {self.aspect} {self.prepared or 'none'}, in the full image {self.full or 'none'}"


def read_tree(listing: str) -> dict[str, Entry]:
    """The entries of a listing, by path."""
    tree = {}
    for line in listing.splitlines():
        path, kind, mode, owner, size, _, content, attributes = line.split("\t")
        tree[path] = Entry(kind, int(mode, 8), owner, int(size), content, attributes)
    return tree


def differences(prepared: Tree, full: Tree) -> Iterator[Difference]:
    """Every difference between two trees, sorted by path."""
    for path in sorted({*prepared, *full}):
        left, right = prepared.get(path), full.get(path)
        if left is None or right is None:
            aspect = ONLY_IN_FULL if left is None else ONLY_IN_PREPARED
            yield Difference(path, aspect, left.kind if left else "", right.kind if right else "")
            continue
        if left == right:
            continue
        for aspect in ASPECTS:
            ours, theirs = getattr(left, aspect), getattr(right, aspect)
            if ours != theirs:
                yield Difference(path, aspect, _shown(aspect, ours), _shown(aspect, theirs))


def glob(pattern: str) -> re.Pattern[str]:
    """A pattern for paths: ``*`` is any text within a name, ``**`` any text."""
    parts = re.split(r"(\*\*|\*)", pattern)
    return re.compile("".join({"**": ".*", "*": "[^/]*"}.get(part, re.escape(part)) for part in parts), re.DOTALL)


def _shown(aspect: str, value: object) -> str:
    return f"{value:04o}" if aspect == "mode" else str(value)[:80]
