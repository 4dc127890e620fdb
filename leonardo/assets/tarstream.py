"""Tar archives as a stream of entries, each passed on as it is: nothing is lost of what a driver's GNU tar wrote.

Python's tarfile expands files with holes and reads binary attributes as text. Here an entry keeps its header and pax
records as bytes; only what a caller changes is changed. Reads what :func:`leonardo.sandbox.layers.pack_command` writes.
"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO

BLOCK = 512
_NAME, _SIZE, _TIME, _SUM, _KIND, _LINK, _PREFIX = (
    slice(0, 100),
    slice(124, 136),
    slice(136, 148),
    slice(148, 156),
    slice(156, 157),
    slice(157, 257),
    slice(345, 500),
)
FILE, HARD_LINK, LINK, CHARACTER, FOLDER = b"0", b"1", b"2", b"3", b"5"


class BrokenArchive(ValueError):
    """No tar archive, or the end of one is missing."""


@dataclass
class Entry:
    """One member.

    Attributes:
        header: its 512 bytes; set fields through the methods, they keep the check sum right.
        records: its pax records, in their order.
        extended: header of the block that held the records, ``b""`` if there was none.
    """

    header: bytearray
    records: dict[bytes, bytes] = field(default_factory=dict)
    extended: bytes = b""

    @property
    def kind(self) -> bytes:
        """Its type flag; :data:`FILE` for both of a file's."""
        flag = bytes(self.header[_KIND])
        return FILE if flag in (b"\0", b"7") else flag

    @property
    def path(self) -> str:
        """Its path below the root, without ``./``; ``""`` for the root. Bytes that are no UTF-8 are escaped."""
        name = self.records.get(b"GNU.sparse.name") or self.records.get(b"path")
        if name is None:
            name = _text(self.header[_NAME])
            if prefix := _text(self.header[_PREFIX]):
                name = prefix + b"/" + name
        return name.decode(errors="surrogateescape").removeprefix("./").rstrip("/").removeprefix(".")

    @property
    def target(self) -> str:
        """What a link points to; a hard link's is a path as :attr:`path` is."""
        name = self.records.get(b"linkpath") or _text(self.header[_LINK])
        return name.decode(errors="surrogateescape").removeprefix("./")

    @property
    def size(self) -> int:
        """Bytes that it takes in the archive."""
        if bytes(self.header[_KIND]) not in (b"0", b"7", b"\0"):
            return 0
        return int(self.records[b"size"]) if b"size" in self.records else _number(self.header[_SIZE])

    @property
    def is_sparse(self) -> bool:
        """Whether what follows is a map of a file with holes and its parts, not the file."""
        return b"GNU.sparse.major" in self.records

    @property
    def content_size(self) -> int:
        """Bytes of its content, holes included."""
        return int(self.records.get(b"GNU.sparse.realsize", self.size))

    @property
    def time(self) -> float:
        """When it was changed, in seconds."""
        return float(self.records[b"mtime"]) if b"mtime" in self.records else float(_number(self.header[_TIME]))

    def set_time(self, seconds: int) -> None:
        """Let it be changed at a full second."""
        self.records.pop(b"mtime", None)
        self._set(_TIME, seconds)

    def forget_writer(self) -> None:
        """GNU tar puts its process number into a sparse entry's name, where only those look who know no holes."""
        if self.is_sparse:
            name = re.sub(rb"GNUSparseFile\.\d+", b"GNUSparseFile.0", _text(self.header[_NAME]))
            self.header[_NAME] = name.ljust(100, b"\0")
            self._sign()

    def set_size(self, size: int) -> None:
        """Say how many bytes of content will follow."""
        self.records.pop(b"size", None)
        self._set(_SIZE, size)

    def write(self, stream: IO[bytes]) -> None:
        """Write header and records; the content comes next, see :func:`pad`."""
        if self.records:
            data = b"".join(_record(name, value) for name, value in self.records.items())
            extended = Entry(bytearray(self.extended))
            extended._set(_SIZE, len(data))
            extended._set(_TIME, int(self.time))
            stream.write(bytes(extended.header) + data + pad(len(data)))
        stream.write(self.header)

    def _set(self, where: slice, number: int) -> None:
        self.header[where] = b"%011o\0" % number
        self._sign()

    def _sign(self) -> None:
        self.header[_SUM] = b" " * 8
        self.header[_SUM] = b"%06o\0 " % sum(self.header)


def pad(size: int) -> bytes:
    """What fills the last block of ``size`` bytes."""
    return b"\0" * (-size % BLOCK)


def entries(stream: IO[bytes]) -> Iterator[tuple[Entry, IO[bytes]]]:
    """The entries of an uncompressed archive, and where the content of each can be read until the next is asked for.

    Raises:
        BrokenArchive: it is none, or ends early.
    """
    records: dict[bytes, bytes] = {}
    extended = b""
    while True:
        header = stream.read(BLOCK)
        if len(header) < BLOCK:
            raise BrokenArchive("the archive has no end")
        if not header.strip(b"\0"):
            break
        if sum(header) - sum(header[_SUM]) + 8 * 32 != _number(header[_SUM]):
            raise BrokenArchive("a header of the archive is damaged")
        if header[_KIND] == b"x":
            data = _exactly(stream, _number(header[_SIZE]))
            _exactly(stream, len(pad(len(data))))
            records, extended = _records(data), header
            continue
        entry = Entry(bytearray(header), records, extended)
        records, extended = {}, b""
        content = _Content(stream, entry.size)
        fill = len(pad(entry.size))
        yield entry, content  # type: ignore[misc]
        content.skip()
        _exactly(stream, fill)
    while stream.read(1 << 16):
        pass  # the rest of the last record; a compressed stream checks its sum at its end


def end(stream: IO[bytes]) -> None:
    """Write the end of an archive."""
    stream.write(b"\0" * (2 * BLOCK))


def copy_content(content: IO[bytes], size: int, stream: IO[bytes]) -> None:
    """Pass content on, with what fills its last block."""
    shutil.copyfileobj(content, stream, 1 << 20)
    stream.write(pad(size))


class _Content:
    """The content of one entry, and no more."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream = stream
        self._left = size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        data = _exactly(self._stream, wanted)
        self._left -= wanted
        return data

    def skip(self) -> None:
        while self._left:
            self.read(1 << 20)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size) if size else b""
    if len(data) < size:
        raise BrokenArchive("the archive ends early")
    return data


def _text(data: bytes | bytearray) -> bytes:
    return bytes(data).partition(b"\0")[0]


def _number(data: bytes | bytearray) -> int:
    if data[0] & 0x80:  # base 256, for what has no room in octal
        return int.from_bytes(bytes([data[0] & 0x7F]) + bytes(data[1:]))
    try:
        return int(bytes(data).strip(b"\0 ") or b"0", 8)
    except ValueError as error:
        raise BrokenArchive("a header of the archive is damaged") from error


def _records(data: bytes) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    while data:
        length, _, _ = data.partition(b" ")
        try:
            record, data = data[len(length) + 1 : int(length) - 1], data[int(length) :]
        except ValueError as error:
            raise BrokenArchive("a record of the archive is damaged") from error
        name, _, value = record.partition(b"=")
        found[name] = value
    return found


def _record(name: bytes, value: bytes) -> bytes:
    body = b" " + name + b"=" + value + b"\n"
    length = len(body) + 1
    while length != len(body) + len(str(length)):
        length = len(body) + len(str(length))
    return str(length).encode() + body
