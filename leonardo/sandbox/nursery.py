"""The process that sandboxes are cloned from, and the clone that waits for the next sandbox.

Why not from the holder: processes that came of each other share a page until one of them writes to it, and Python
writes to many, since every use of an object counts. The nursery does nothing but clone, so that a sandbox keeps sharing
whatever it does not write to itself. Its clones are the holder's children, as if the holder had made them.
"""

import os
import signal
import socket

from leonardo.sandbox import linux, mounts, sandboxprocess, wire

_PATIENCE = 10.0


class Spare:
    """A process in namespaces of its own that waits to hear which sandbox it is to become.

    Attributes:
        process: its id.
        nested: whether it has a user namespace of its own.
        slots: how many layers had been bound when it was made; it does not see later ones.
    """

    def __init__(self, process: int, control: socket.socket, *, nested: bool, slots: int) -> None:
        self.process, self.nested, self.slots = process, nested, slots
        self._control = control

    def become(self, plan: mounts.Plan, channel: int) -> None:
        """Say what it is to become. Raises OSError where it has ended."""
        wire.send(self._control, plan.to_json(), descriptors=[*plan.groups, channel])
        self._control.close()

    def end(self) -> None:
        """End it unused."""
        self._control.close()  # it waits for nothing else


class Nursery:
    """For a process 1 with ``ids`` (see :class:`leonardo.sandbox.sandboxprocess.IdMaps`)."""

    def __init__(self, ids: sandboxprocess.IdMaps) -> None:
        self._ids = ids
        self._control, theirs = socket.socketpair()
        self._control.settimeout(_PATIENCE)
        self.process = linux.clone(0)
        if not self.process:
            try:
                _serve(theirs)
            finally:
                os._exit(1)
        theirs.close()

    def spare(self, *, nested: bool, slots: int) -> Spare:
        """A process for a sandbox. Raises OSError where none can be made, of which ConnectionError and TimeoutError
        mean that the nursery itself has ended or hangs."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._control, [b"n" if nested else b"-"], [theirs.fileno()])
            answer = self._control.recv(16)
            if not answer:
                raise ConnectionResetError
            process = int(answer)
            if process < 0:
                raise OSError(-process, f"clone into new namespaces: {os.strerror(-process)}")
            try:
                if nested:
                    self._ids.give_to(process)
                ours.send(b"g")
            except OSError:
                os.kill(process, signal.SIGKILL)
                raise
        except BaseException:
            ours.close()
            raise
        return Spare(process, ours, nested=nested, slots=slots)

    def end(self) -> None:
        """Nothing more is wanted of it."""
        self._control.close()


def _serve(control: socket.socket) -> None:
    linux.die_with_parent()
    linux.close_descriptors_except(control.fileno())
    while True:
        wanted, (theirs,), _, _ = socket.recv_fds(control, 1, 1)
        nested = linux.CLONE_NEWUSER if wanted == b"n" else 0
        try:
            process = linux.clone(linux.CLONE_PARENT | sandboxprocess.ISOLATED | linux.CLONE_NEWNET | nested)
        except OSError as error:
            process = -(error.errno or 1)
        if not process:
            sandboxprocess.wait_for_plan(theirs)
        os.close(theirs)
        control.send(b"%d" % process)
