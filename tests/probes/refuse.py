"""Runs a command under a kernel that refuses file systems in user namespaces, as older ones do: with EPERM.

A seccomp filter hands each mount to this process, which looks at what is asked (Linux 5.5 on). Usage, as root::

    python refuse.py overlay,fuse -- COMMAND...
"""

import array
import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
import sys
import threading
from pathlib import Path

_MOUNT, _FSOPEN, _SECCOMP = {"x86_64": (165, 430, 317), "aarch64": (40, 430, 277)}[platform.machine()]
_FILTER_MODE, _NEW_LISTENER = 1, 8
_NOTIFY, _ALLOW = 0x7FC00000, 0x7FFF0000
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV, _SEND
_CONTINUE = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _listener() -> int:
    """Filter this process from here on; the descriptor on which its mounts are asked for."""
    lines = [
        (0x20, 0, 0, 0),  # load the number of the call
        (0x15, 1, 0, _MOUNT),
        (0x15, 0, 1, _FSOPEN),
        (0x06, 0, 0, _NOTIFY),
        (0x06, 0, 0, _ALLOW),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code))
    descriptor = _libc.syscall(_SECCOMP, _FILTER_MODE, _NEW_LISTENER, program)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return descriptor


def _text(process: int, address: int) -> str:
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(16).split(b"\0")[0].decode(errors="replace")


def _answer(listener: int, refused: set[str]) -> None:
    own = Path("/proc/self/ns/user").readlink()
    while True:
        asked = array.array("B", bytes(80))
        try:
            fcntl.ioctl(listener, _RECEIVE, asked)
        except OSError as error:
            if error.errno in (errno.EINTR, errno.ENOENT):
                continue
            return
        number, process, _, call, _, _, *arguments = struct.unpack("QIIiIQ6Q", asked)
        result, flags = 0, _CONTINUE
        try:
            address = arguments[2] if call == _MOUNT else arguments[0]
            nested = Path(f"/proc/{process}/ns/user").readlink() != own
            if nested and address and _text(process, address) in refused:
                # without the new calls, programs take mount(2)
                result, flags = (-errno.EPERM, 0) if call == _MOUNT else (-errno.ENOSYS, 0)
        except OSError:
            pass
        try:
            fcntl.ioctl(listener, _SEND, struct.pack("QqiI", number, 0, result, flags))
        except OSError:
            continue  # it has ended meanwhile


def main() -> None:
    """Fork; the child installs the filter and becomes the command, its parent answers."""
    names, _, *command = sys.argv[1:]
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        descriptor = _listener()
        socket.send_fds(there, [b"x"], [descriptor])
        os.close(descriptor)
        here.close()
        there.close()
        os.execvp(command[0], command)
    there.close()
    _, descriptors, _, _ = socket.recv_fds(here, 1, 1)
    threading.Thread(target=_answer, args=(descriptors[0], set(names.split(","))), daemon=True).start()
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
