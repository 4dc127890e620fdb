"""A pseudo terminal for a command, made inside of the sandbox by its process 1."""

import fcntl
import os
import struct
import termios

_UNLOCK, _NUMBER = 0x40045431, 0x80045430  # TIOCSPTLCK, TIOCGPTN
_END_OF_INPUT = b"\x04"


class Terminal:
    """The terminal's far side, of ``rows`` and ``columns``; ``path`` is the near side, for the command to open.

    ``typed`` is what is entered, then the end of input. Raises OSError where the sandbox's /dev has been broken.
    """

    def __init__(self, rows: int, columns: int, typed: bytes) -> None:
        flags = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | os.O_NONBLOCK
        descriptor = os.open("/dev/ptmx", flags)
        try:
            fcntl.ioctl(descriptor, _UNLOCK, struct.pack("i", 0))
            number = struct.unpack("i", fcntl.ioctl(descriptor, _NUMBER, struct.pack("i", 0)))[0]
            fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        except BaseException:
            os.close(descriptor)
            raise
        self.descriptor = descriptor
        self.path = f"/dev/pts/{number}"
        self._pending = memoryview(typed + _END_OF_INPUT)

    @property
    def hungry(self) -> bool:
        """Whether there is more to enter."""
        return bool(self._pending)

    def type(self) -> None:
        """Enter what the terminal takes now."""
        try:
            self._pending = self._pending[os.write(self.descriptor, self._pending[:1024]) :]
        except BlockingIOError:
            pass
        except OSError:
            self._pending = memoryview(b"")  # nobody has the near side open any more
