"""The overlay of a sandbox by fuse-overlayfs, where the kernel's own may not be mounted in a user namespace.

The FUSE process runs in the holder's pid namespace, out of the sandbox's reach, and dies with the process that started
it. What it notes in a writable layer differs from the kernel's overlay and is made neutral before a layer is packed.
"""

import contextlib
import errno
import os
import signal
import time
from collections.abc import Sequence

from leonardo.sandbox import linux, mounts
from leonardo.sandbox.layers import TOOL_ENVIRONMENT

PROGRAM = "fuse-overlayfs"
DEVICE = "/dev/fuse"
START_PATIENCE = 10.0
HEAD_START = 0.1
GONE = 76
"""Exit code of what holds a sandbox whose FUSE process has ended or hangs."""

_OPAQUE_FILE, _WHITEOUT = ".wh..wh..opq", ".wh."
_OPAQUE, _NEUTRAL_OPAQUE = ("user.fuseoverlayfs.opaque", "trusted.overlay.opaque"), "user.overlay.opaque"


def start(layers: Sequence[str], target: str) -> int:
    """Mount ``layers`` with the writable layer of :data:`mounts.SCRATCH` at ``target``; the process that serves it."""
    upper, work = f"{mounts.SCRATCH}/upper", f"{mounts.SCRATCH}/work"
    # the kernel's cache would take what has no room any more, and the writer would never hear of it
    status = os.stat(upper)
    process = _start(f"lowerdir={':'.join(layers)},upperdir={upper},workdir={work},writeback=0", target)
    os.utime(upper, ns=(status.st_atime_ns, status.st_mtime_ns))  # it tried there what the file system can
    return process


def show_layers(layers: Sequence[str], target: str) -> None:
    """Mount ``layers``, read-only; the process that serves them ends when they are unmounted."""
    _start(f"lowerdir={':'.join(layers)}", target)


def _start(options: str, target: str) -> int:
    before = os.stat(target).st_dev
    complaints = os.memfd_create("complaints")
    # writeback: the kernel would keep times of its own, and tell them late
    options += ",allow_other,suid,nodev,writeback=0"
    process = linux.clone(0)
    if not process:
        linux.die_with_parent()
        nothing = os.open("/dev/null", os.O_RDWR)
        for own, its in ((nothing, 0), (nothing, 1), (complaints, 2)):
            os.dup2(own, its)
        linux.close_descriptors_except()
        try:
            path = TOOL_ENVIRONMENT["PATH"]
            for folder in path.split(":"):  # os.execvpe would import, and this process may not be able to read modules
                with contextlib.suppress(FileNotFoundError):
                    os.execve(f"{folder}/{PROGRAM}", [PROGRAM, "-f", "-o", options, target], {"PATH": path})
        finally:
            os._exit(127)
    end = time.monotonic() + START_PATIENCE
    while os.stat(target).st_dev == before:
        ended, _ = os.waitpid(process, os.WNOHANG)
        if ended or time.monotonic() > end:
            if not ended:
                os.kill(process, signal.SIGKILL)
            os.lseek(complaints, 0, os.SEEK_SET)
            said = os.read(complaints, 4096).decode(errors="replace").strip().splitlines()
            raise OSError(errno.EIO, f"{PROGRAM}: {said[-1] if said else 'it did not start'}")
        time.sleep(0.0005)
    os.close(complaints)
    return process


def is_stopped(process: int) -> bool:
    """Whether a process serves no more: stopped, or gone."""
    try:
        return linux.read(f"/proc/{process}/stat").rpartition(")")[2].split()[0] in "TtZX"
    except OSError:
        return True


def work_of(process: int) -> tuple[str, ...]:
    """Processor time that a process has used so far."""
    try:
        return tuple(linux.read(f"/proc/{process}/stat").rpartition(")")[2].split()[11:13])
    except OSError:
        return ()


def make_neutral(folder: str) -> None:
    """Rewrite what fuse-overlayfs noted in a writable layer as :mod:`leonardo.sandbox.layers` says."""
    for place, _, files in os.walk(folder):
        status = os.stat(place)
        if _OPAQUE_FILE in files:
            os.unlink(f"{place}/{_OPAQUE_FILE}")
            _mark_opaque(place)
        for name in files:
            if name.startswith(_WHITEOUT) and name != _OPAQUE_FILE:
                os.unlink(f"{place}/{name}")
                os.mknod(f"{place}/{name.removeprefix(_WHITEOUT)}", 0o600 | 0o020000, 0)
        for name in _OPAQUE:
            try:
                os.removexattr(place, name)
            except OSError:
                continue  # it has none
            _mark_opaque(place)
        os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))


def _mark_opaque(folder: str) -> None:
    os.setxattr(folder, _NEUTRAL_OPAQUE, b"y")
