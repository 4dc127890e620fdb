"""The output of one stream of a command, in bounded memory: the head and the tail are kept, the middle is counted."""

from collections import deque

_SMALL = 4096  # bytes; shorter pieces are joined, or a byte at a time would cost fifty


class Output:
    """Collects bytes; keeps at most ``limit`` of them, half from the start and half from the end."""

    def __init__(self, limit: int) -> None:
        self._head_room = limit - limit // 2
        self._tail_room = limit // 2
        self._head = bytearray()
        self._tail: deque[bytearray] = deque()
        self._tail_size = 0
        self._left_out = 0

    def add(self, data: bytes) -> None:
        """Take in more output."""
        room = self._head_room - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        if self._tail and len(self._tail[-1]) < _SMALL:
            self._tail[-1] += data
        else:
            self._tail.append(bytearray(data))
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= self._tail_room:
            gone = len(self._tail.popleft())
            self._tail_size -= gone
            self._left_out += gone

    def value(self) -> bytes:
        """What was kept, with a line in the middle that says how much was not."""
        tail = b"".join(self._tail)
        surplus = max(0, len(tail) - self._tail_room)
        left_out = self._left_out + surplus
        marker = b"\n[... %d bytes left out ...]\n" % left_out if left_out else b""
        return bytes(self._head) + marker + tail[surplus:]
