"""The files of a store on a shared file system, read once each and as a whole, with every request to it counted.

What a metadata server of such a file system is asked for is to open a name, to look at one, and to list a folder. Here
nothing but this module asks, it only opens and lists, and it counts both. Reading on from an open file is not counted.
"""

import os
from pathlib import Path

_PIECE = 4 << 20  # as large reads as file systems of clusters like


class SharedFiles:
    """The files below ``root``.

    Attributes:
        operations: names opened, and folders opened and listed, so far; also of those that were not there.
        bytes: read so far.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.operations = 0
        self.bytes = 0

    def names(self, folder: str) -> list[str]:
        """What is in a folder, sorted. Two operations. Raises OSError."""
        self.operations += 2
        return sorted(path.name for path in (self.root / folder).iterdir())

    def read(self, name: str | Path) -> bytes:
        """A file's content; ``name`` is below the root, or absolute. One operation. Raises OSError."""
        self.operations += 1
        source = os.open(self.root / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            pieces = []
            while piece := os.read(source, _PIECE):
                pieces.append(piece)
        finally:
            os.close(source)
        content = b"".join(pieces)
        self.bytes += len(content)
        return content

    def copy(self, name: str, target: Path) -> int:
        """Copy a file to ``target``. One operation. Returns its bytes. Raises OSError."""
        self.operations += 1
        source = os.open(self.root / name, os.O_RDONLY | os.O_CLOEXEC)
        size = 0
        try:
            with target.open("wb", buffering=0) as sink:
                while piece := os.read(source, _PIECE):
                    size += sink.write(piece)
        finally:
            os.close(source)
            self.bytes += size
        return size
