"""Make CUDA libraries small to carry: the kernels of other GPUs become zeros, which compress to nothing.

A library holds fat binaries: a container (magic, version, header size, size of what follows) of entries, each the code
for one architecture (kind, header size, payload size, architecture). Nothing moves, so every offset stays right, and
the driver takes the entry of its own architecture as before.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MAGIC = struct.pack("<I", 0xBA55ED50)
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, header size, size of the entries
_ENTRY = struct.Struct("<HHIQ")  # kind, version, header size, size of the payload
_ARCHITECTURE_AT = 28
_PTX, _ELF = 1, 2


@dataclass(frozen=True)
class _Entry:
    start: int
    size: int
    kind: int
    architecture: int


def keep_only(library: Path, architecture: int) -> int:
    """Zero the code in ``library`` that no GPU of ``architecture`` (90: Hopper) runs, in place.

    Machine code of that architecture stays, and in containers without any machine code the portable form does. A
    container with machine code of other architectures alone is emptied: its kernels cannot be launched afterwards.

    Returns:
        Bytes of code that stay.
    """
    kept = 0
    with library.open("r+b") as stream:
        if stream.seek(0, 2) == 0:
            return 0
        with mmap.mmap(stream.fileno(), 0) as content:
            for entries in _containers(content):
                only_portable = all(entry.kind == _PTX for entry in entries)
                for entry in entries:
                    if only_portable or (entry.kind == _ELF and entry.architecture == architecture):
                        kept += entry.size
                    else:
                        content[entry.start : entry.start + entry.size] = bytes(entry.size)
    return kept


def _containers(content: mmap.mmap) -> Iterator[list[_Entry]]:
    at = content.find(_MAGIC)
    while at >= 0:
        entries = _entries(content, at)
        if entries:
            yield entries
        at = content.find(_MAGIC, at + len(_MAGIC))


def _entries(content: mmap.mmap, at: int) -> list[_Entry]:
    """The entries of the container at ``at``; none where the four bytes stand there by chance."""
    if at + _CONTAINER.size > len(content):
        return []
    _, version, header, size = _CONTAINER.unpack_from(content, at)
    end = at + header + size
    if version != 1 or header != _CONTAINER.size or end > len(content):
        return []
    entries, at = [], at + header
    while at + _ENTRY.size <= end:
        kind, _, header, size = _ENTRY.unpack_from(content, at)
        if kind not in (_PTX, _ELF) or not 48 <= header <= 512 or at + header + size > end:
            break
        (architecture,) = struct.unpack_from("<I", content, at + _ARCHITECTURE_AT)
        entries.append(_Entry(at + header, size, kind, architecture))
        at += header + size
    return entries
