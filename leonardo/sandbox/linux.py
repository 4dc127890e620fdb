"""The Linux calls that Python has no name for, through ctypes. Standard library only: this runs in helper processes
that have left the host's file system."""

import ctypes
import fcntl
import os
import signal
import socket
import struct

CLONE_PARENT = 0x00008000
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH = 2

MACHINE = os.uname().machine

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NAME = 1, 4, 15
_SYSTEM_CALLS = {"x86_64": {"clone": 56, "pivot_root": 155}, "aarch64": {"clone": 220, "pivot_root": 41}}

_libc = ctypes.CDLL(None, use_errno=True)
# clone must not let go of the interpreter lock: the child would have to take it back in a process without its threads
_libc_holding_lock = ctypes.PyDLL(None, use_errno=True)
_libc.mount.argtypes = (ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p)


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else os.fsencode(text)


def _number(call: str) -> int:
    try:
        return _SYSTEM_CALLS[MACHINE][call]
    except KeyError:
        raise OSError(f"no {call} known for the architecture {MACHINE}") from None


def mount(source: str | None, target: str, kind: str | None, flags: int = 0, options: str | None = None) -> None:
    """mount(2); the error names the mount."""
    result = _libc.mount(_bytes(source), _bytes(target), _bytes(kind), flags, _bytes(options))
    _check(result, f"mount {kind or source or 'flags'} on {target}")


def bind(source: str, target: str, *, read_only: bool = False) -> None:
    """Make the file or folder ``source`` visible at ``target`` (which must exist and be of the same kind)."""
    mount(source, target, None, MS_BIND)
    if read_only:
        # flags that the source's mount has are locked in a user namespace: a remount must repeat them
        kept = os.statvfs(target).f_flag & (os.ST_NOSUID | os.ST_NODEV | os.ST_NOEXEC)
        mount(None, target, None, MS_REMOUNT | MS_BIND | MS_RDONLY | kept)


def unmount(target: str) -> None:
    """Detach a mount; what still uses it keeps it."""
    _check(_libc.umount2(_bytes(target), MNT_DETACH), f"unmount {target}")


def pivot_root_here(folder: str) -> None:
    """Make ``folder`` (a mount point) the root of this mount namespace and let go of the old root."""
    os.chdir(folder)
    _check(_libc.syscall(_number("pivot_root"), b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", MNT_DETACH), "unmount the old root")
    os.chdir("/")


def pivot_root(folder: str, old: str) -> None:
    """Make ``folder`` (a mount point) the root of this mount namespace; the old root appears at ``old`` below it."""
    os.chdir(folder)
    _check(_libc.syscall(_number("pivot_root"), b".", os.fsencode(old)), "pivot_root")
    os.chdir("/")


def clone(flags: int) -> int:
    """fork(2) into new namespaces (``CLONE_NEW*``). Only for a process with one thread."""
    arguments = [ctypes.c_ulong(flags | signal.SIGCHLD), *[ctypes.c_ulong(0)] * 4]
    return _check(_libc_holding_lock.syscall(_number("clone"), *arguments), "clone into new namespaces")


def unshare(flags: int) -> None:
    """unshare(2)."""
    _check(_libc.unshare(flags), "unshare")


def join_namespace(descriptor: int, kind: int) -> None:
    """setns(2): enter the namespace that ``descriptor`` (of /proc/PID/ns/KIND) names."""
    _check(_libc.setns(descriptor, kind), "enter a namespace")


def die_with_parent() -> None:
    """Have the kernel send SIGKILL when the parent's thread ends. A change of credentials forgets this."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0), "prctl PDEATHSIG")


def set_dumpable(allowed: bool) -> None:
    """Whether processes of the same user may trace this one and read its memory, environment and descriptors."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, ctypes.c_ulong(int(allowed)), 0, 0, 0), "prctl DUMPABLE")


def set_hostname(name: str) -> None:
    """sethostname(2) in this UTS namespace."""
    data = name.encode()
    _check(_libc.sethostname(data, len(data)), "sethostname")


def set_title(title: str) -> None:
    """Replace this process's name and command line as /proc shows them, so that a sandbox sees no host path there."""
    name = title.encode()
    _libc.prctl(_PR_SET_NAME, ctypes.c_char_p(name[:15]), 0, 0, 0)
    fields = read("/proc/self/stat").rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end, proc(5) fields 48 and 49
    if start and end > start:
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, name, min(len(name), end - start - 1))


def bring_up_loopback() -> None:
    """ifconfig lo up, in this network namespace."""
    get_flags, set_flags, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        answer = fcntl.ioctl(handle, get_flags, struct.pack("16sh14x", b"lo", 0))
        flags = struct.unpack("16sh14x", answer)[1]
        fcntl.ioctl(handle, set_flags, struct.pack("16sh14x", b"lo", flags | up))


def close_descriptors_except(*kept: int) -> None:
    """Close every open descriptor above 2 that is not in ``kept``."""
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                pass  # the listing's own descriptor


def system_call(number: int, name: str, *arguments: int | bytes) -> int:
    """syscall(2), for what the C library has no name for."""
    values = [ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value) for value in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *values), name)


def kernel_version() -> tuple[int, int]:
    """(major, minor) of the running kernel."""
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)


def read(path: str) -> str:
    """The text of a file of /proc."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 1 << 16).decode()
    finally:
        os.close(descriptor)


def write(path: str, text: str) -> None:
    """Write to a file of /proc, in one piece."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
