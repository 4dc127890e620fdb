"""Messages over a Unix stream socket: a JSON header, a blob of bytes, and open file descriptors."""

import array
import json
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_LENGTHS = struct.Struct("!IQ")  # of the header's JSON text and of the blob, in bytes
_MOST_DESCRIPTORS = 8
_CHUNK = 1 << 20


@dataclass
class Message:
    """What :func:`receive` got. The receiver owns ``descriptors`` and closes them."""

    header: dict[str, Any]
    blob: bytes = b""
    descriptors: list[int] = field(default_factory=list)


def send(connection: socket.socket, header: dict[str, Any], blob: bytes = b"", descriptors: Sequence[int] = ()) -> None:
    """Send one message whole. The sender keeps its own copies of ``descriptors``."""
    text = json.dumps(header).encode()
    start = _LENGTHS.pack(len(text), len(blob)) + text
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
    sent = connection.sendmsg([start, blob], rights)
    if sent < len(start):
        connection.sendall(start[sent:])
        sent = len(start)
    if sent < len(start) + len(blob):
        connection.sendall(memoryview(blob)[sent - len(start) :])


def receive(connection: socket.socket) -> Message:
    """Receive one message whole. Raises EOFError when the other side has gone."""
    room = socket.CMSG_SPACE(_MOST_DESCRIPTORS * array.array("i").itemsize)
    start, ancillary, _, _ = connection.recvmsg(_LENGTHS.size, room, socket.MSG_CMSG_CLOEXEC)
    descriptors = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    start += _read_exactly(connection, _LENGTHS.size - len(start)) if start else b""
    if not start:
        raise EOFError("the other side closed the connection")
    header_length, blob_length = _LENGTHS.unpack(start)
    header = json.loads(_read_exactly(connection, header_length))
    return Message(header, _read_exactly(connection, blob_length), list(descriptors))


def _read_exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(min(length - len(data), _CHUNK))
        if not part:
            raise EOFError("the other side closed the connection in the middle of a message")
        data += part
    return bytes(data)
