"""Messages arrive whole, with their descriptors, or not at all."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from leonardo.sandbox import wire


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ends = socket.socketpair()
    yield ends
    for end in ends:
        end.close()


def test_a_message_larger_than_any_buffer(pair: tuple[socket.socket, socket.socket]) -> None:
    header, blob = {"text": "ü" * 300_000}, os.urandom(5_000_000)
    sender = threading.Thread(target=wire.send, args=(pair[0], header, blob))
    sender.start()
    message = wire.receive(pair[1])
    sender.join()
    assert (message.header, message.blob, message.descriptors) == (header, blob, [])


def test_descriptors_travel_with_their_own_message(pair: tuple[socket.socket, socket.socket]) -> None:
    read, write = os.pipe()
    wire.send(pair[0], {"n": 1}, descriptors=[write])
    wire.send(pair[0], {"n": 2}, b"second")
    first, second = wire.receive(pair[1]), wire.receive(pair[1])
    assert [first.header["n"], second.header["n"], second.descriptors] == [1, 2, []]
    os.write(first.descriptors[0], b"through")
    assert os.read(read, 100) == b"through"
    assert not os.get_inheritable(first.descriptors[0])
    for descriptor in (read, write, *first.descriptors):
        os.close(descriptor)


def test_an_end_is_an_end_also_in_the_middle(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[0].sendall(b"\0\0\0")
    pair[0].close()
    with pytest.raises(EOFError):
        wire.receive(pair[1])
    with pytest.raises(EOFError):
        wire.receive(pair[1])
