"""Layers as the holder has them: each bound once, under a short name, while it is in use and a while after.

Overlay options are one page long and take neither ``:`` nor ``,`` in a path; a short name has no such trouble. Root's
holder is not root on the host, so it may be unable to walk to a layer (below /root, say): the guard, which still is,
opens the path for it.
"""

import os
import socket
import stat
from collections import OrderedDict

from leonardo.sandbox import linux, mounts, wire

MOST_IDLE = 64


class _Slot:
    def __init__(self, folder: str) -> None:
        self.folder, self.users = folder, 0


class Slots:
    """Bind mounts below :data:`leonardo.sandbox.mounts.LAYERS`, by key; the least recently used idle ones go first.

    Args:
        opener: the socket to the guard, or None where the holder has the caller's rights itself.
    """

    def __init__(self, opener: socket.socket | None) -> None:
        self._opener = opener
        self._slots: OrderedDict[str, _Slot] = OrderedDict()
        self.made = 0

    def take(self, path: str, key: str) -> str:
        """Where ``path`` is bound. ``key`` tells it from another file or folder that was at the same path before."""
        if path == mounts.IMAGE:
            return path  # bound for good (see mounts.return_to_host)
        slot = self._slots.get(key)
        if slot is None:
            slot = _Slot(self._bind(path))
            self._slots[key] = slot
        slot.users += 1
        self._slots.move_to_end(key)
        return slot.folder

    def give_back(self, key: str, *, forget: bool = False) -> None:
        """One user less. ``forget`` unbinds at once when it was the last."""
        if key == mounts.IMAGE:
            return
        slot = self._slots[key]
        slot.users -= 1
        if forget and not slot.users:
            self._drop(key)
        idle = [name for name, other in self._slots.items() if not other.users]
        for name in idle[: max(0, len(idle) - MOST_IDLE)]:
            self._drop(name)

    def _drop(self, key: str) -> None:
        slot = self._slots.pop(key)
        linux.unmount(slot.folder)
        (os.rmdir if os.path.isdir(slot.folder) else os.unlink)(slot.folder)

    def _bind(self, path: str) -> str:
        descriptor = self._open(path)
        try:
            self.made += 1
            target = f"{mounts.LAYERS}/{self.made}"
            if stat.S_ISDIR(os.fstat(descriptor).st_mode):
                os.mkdir(target, 0o755)
            else:
                os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
            linux.bind(f"/proc/self/fd/{descriptor}", target)
            return target
        finally:
            os.close(descriptor)

    def _open(self, path: str) -> int:
        if self._opener is None:
            return os.open(path, os.O_PATH | os.O_CLOEXEC)
        wire.send(self._opener, {"path": path})
        answer = wire.receive(self._opener)
        if "error" in answer.header:
            raise OSError(answer.header["errno"], answer.header["error"])
        return answer.descriptors[0]


def serve_opener(connection: socket.socket) -> None:
    """The guard's side: open one path as the holder's mount namespace has it, with the caller's rights."""
    request = wire.receive(connection)
    try:
        descriptor = os.open(request.header["path"], os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        wire.send(connection, {"error": f"{request.header['path']}: {error.strerror}", "errno": error.errno})
        return
    try:
        wire.send(connection, {}, descriptors=[descriptor])
    finally:
        os.close(descriptor)
