"""Messages over a Unix stream socket: a JSON header, a blob of bytes, and open file descriptors.

This module and all that the helper processes load do without the standard library's larger modules (``dataclasses``,
``typing``, ``pathlib``): each sandbox has a copy of the pages that it writes to, and these are the fewer the less lies
between what it uses (``make bench-sandbox`` measures it, and a test holds the imports to it).
"""

import array
import json
import socket
import struct
from collections.abc import Sequence

Header = dict
"""Of text to JSON values."""

_LENGTHS = struct.Struct("!IQ")  # of the header's JSON text and of the blob, in bytes
_MOST_DESCRIPTORS = 8
_CHUNK = 1 << 20
_encode, _decode = json.JSONEncoder().encode, json.JSONDecoder().raw_decode  # not by way of json's own functions


class Message:
    """What :func:`receive` got. The receiver owns ``descriptors`` and closes them."""

    def __init__(self, header: Header, blob: bytes, descriptors: list[int]) -> None:
        self.header, self.blob, self.descriptors = header, blob, descriptors


def send(connection: socket.socket, header: Header, blob: bytes = b"", descriptors: Sequence[int] = ()) -> None:
    """Send one message whole. The sender keeps its own copies of ``descriptors``."""
    text = _encode(header).encode()
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
    header, _ = _decode(_read_exactly(connection, header_length).decode())
    return Message(header, _read_exactly(connection, blob_length), list(descriptors))


def _read_exactly(connection: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = connection.recv(min(length - len(data), _CHUNK))
        if not part:
            raise EOFError("the other side closed the connection in the middle of a message")
        data += part
    return bytes(data)
