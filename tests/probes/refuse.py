"""Runs a command under a kernel that refuses file systems in user namespaces, as older ones do: with EPERM.

A seccomp filter hands each mount to this process, which looks at what is asked (Linux 5.19 on). The word ``namespaces``
stands for a filter that refuses user namespaces, as security modules and containers do. Usage, as root::

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
_UNSHARE, _CLONE, _CLONE3 = {"x86_64": (272, 56, 435), "aarch64": (97, 220, 435)}[platform.machine()]
_NEW_USER = 0x10000000
_NO_FILE_SYSTEM = 0x1000 | 0x2000 | 0x20 | 0x1E0000  # a bind, a move, a remount, a change of propagation
_FILTER_MODE, _NEW_LISTENER = 1, 8
_WAIT_KILLABLE = 32  # a signal does not interrupt a call that is being looked at; Linux 5.19 on
_NOTIFY, _ALLOW, _ERROR = 0x7FC00000, 0x7FFF0000, 0x00050000
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV, _SEND
_CONTINUE = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _filter(lines: list[tuple[int, int, int, int]], flags: int = 0) -> int:
    """Filter this process from here on; a descriptor, where ``flags`` ask for one."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
    program = struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code))
    result = _libc.syscall(_SECCOMP, _FILTER_MODE, flags, program)
    if result < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return int(result)


_ASK_FOR_MOUNTS = [
    (0x20, 0, 0, 0),  # load the number of the call
    (0x15, 3, 0, _FSOPEN),
    (0x15, 0, 3, _MOUNT),
    (0x20, 0, 0, 40),  # load the flags
    (0x45, 1, 0, _NO_FILE_SYSTEM),
    (0x06, 0, 0, _NOTIFY),
    (0x06, 0, 0, _ALLOW),
]
_NO_USER_NAMESPACES = [
    (0x20, 0, 0, 0),
    (0x15, 3, 0, _UNSHARE),
    (0x15, 2, 0, _CLONE),
    (0x15, 0, 4, _CLONE3),
    (0x06, 0, 0, _ERROR | errno.ENOSYS),  # its flags are behind a pointer: programs take clone then
    (0x20, 0, 0, 16),  # load the flags
    (0x45, 0, 1, _NEW_USER),
    (0x06, 0, 0, _ERROR | errno.EPERM),
    (0x06, 0, 0, _ALLOW),
]


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
    refused = set(names.split(","))
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        if "namespaces" in refused:
            _filter(_NO_USER_NAMESPACES)
        descriptor = _filter(_ASK_FOR_MOUNTS, _NEW_LISTENER | _WAIT_KILLABLE)
        socket.send_fds(there, [b"x"], [descriptor])
        os.close(descriptor)
        here.close()
        there.close()
        os.execvp(command[0], command)
    there.close()
    _, descriptors, _, _ = socket.recv_fds(here, 1, 1)
    threading.Thread(target=_answer, args=(descriptors[0], refused), daemon=True).start()
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
