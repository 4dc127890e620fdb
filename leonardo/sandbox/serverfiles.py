"""File transfer inside a sandbox, by process 1 itself: the image needs no ``cat`` or ``tar``.

Everything here sees only the sandbox's own file system, so the worst a hostile path can do is confuse the sandbox. It
must not block process 1 for ever, though: pipes and devices are opened without waiting, and only files are read.
"""

import bz2  # noqa: F401 - tarfile loads these late, when the host's libraries are out of reach
import errno
import gzip  # noqa: F401
import io
import lzma  # noqa: F401
import os
import stat
import struct
import tarfile
import zlib  # noqa: F401

from leonardo.sandbox import linux

_OPENAT2, _NO_MAGIC_LINKS = 437, 2

MOST_READ = 256 << 20
"""Bytes; a larger file is not moved through memory."""


def prepare(folders: list[str], links: dict[str, str], sizes: dict[str, int], data: bytes) -> None:
    """The steps of a reset at once, without a process: folders, links where no folder is, and files of mode 755, whose
    contents ``data`` holds one after the other."""
    for folder in folders:
        os.makedirs(os.path.join("/", folder), exist_ok=True)
    for path, target in links.items():
        path = os.path.join("/", path)
        if not os.path.isdir(path):
            if os.path.lexists(path):
                os.unlink(path)
            os.symlink(target, path)
    start = 0
    for path, size in sizes.items():
        write(path, data[start : start + size])
        os.chmod(os.path.join("/", path), 0o755)
        start += size


def write(path: str, data: bytes) -> None:
    """Write a file, making its parent folders."""
    path = os.path.join("/", path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = _open(path, flags, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)


def read(path: str) -> bytes:
    """Read a regular file of at most :data:`MOST_READ` bytes."""
    descriptor = _open(os.path.join("/", path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError("is a directory")
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("is not a regular file")
        if status.st_size > MOST_READ:
            raise ValueError(f"is larger than {MOST_READ} bytes")
        parts, size = [], 0
        while part := os.read(descriptor, 1 << 20):  # /proc's files say that they are empty: read to the end
            parts.append(part)
            size += len(part)
            if size > MOST_READ:
                raise ValueError(f"is larger than {MOST_READ} bytes")
        return b"".join(parts)
    finally:
        os.close(descriptor)


def _open(path: str, flags: int, mode: int = 0) -> int:
    """Open a file, but none that is this process's own: by a link to /proc/self in the file's place, say."""
    try:
        how = struct.pack("QQQ", flags, mode, _NO_MAGIC_LINKS)
        descriptor = linux.system_call(_OPENAT2, "open", 0, os.fsencode(path), how, len(how))
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        descriptor = os.open(path, flags, mode)  # a kernel before 5.6
    try:
        if os.path.isdir("/proc/self") and os.fstat(descriptor).st_dev == os.stat("/proc").st_dev:
            opened = os.readlink(f"/proc/self/fd/{descriptor}")
            if opened.startswith(f"/proc/{os.getpid()}/"):
                raise PermissionError(errno.EACCES, "is process 1's own")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def extract(root: str, data: bytes) -> None:
    """Extract a tar archive below ``root`` (made if absent). A member that would land outside is refused by name.

    Names are checked before anything is written; links are followed at each step as they then are, since an archive
    can bring a symbolic link and then a member below it.
    """
    root = os.path.join("/", root)
    os.makedirs(root, exist_ok=True)
    real_root = os.path.realpath(root)
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:*") as archive:
        members = archive.getmembers()
        for member in members:
            _refuse_outward_name(member.name, member.name)
            if member.islnk():
                _refuse_outward_name(member.linkname, member.name)
            if member.ischr() or member.isblk():
                raise ValueError(f"member {member.name!r} is a device")
        for member in members:
            target = os.path.join(real_root, member.name)
            parent = os.path.realpath(os.path.dirname(target))
            if not _is_below(parent, real_root):
                raise ValueError(f"member {member.name!r} leads out of {root} through a link")
            if member.islnk() and not _is_below(os.path.realpath(os.path.join(real_root, member.linkname)), real_root):
                raise ValueError(f"member {member.name!r} links to a file outside of {root}")
            if not member.isdir() and os.path.lexists(target) and (os.path.islink(target) or not os.path.isdir(target)):
                os.unlink(target)  # never write through what stands there
            elif member.isdir() and os.path.islink(target) and not _is_below(os.path.realpath(target), real_root):
                raise ValueError(f"member {member.name!r} leads out of {root} through a link")
            _extract_one(archive, member, real_root)


def _extract_one(archive: tarfile.TarFile, member: tarfile.TarInfo, root: str) -> None:
    # the checks above are ours: Python's own filters are not in every 3.11
    extra = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
    archive.extract(member, root, numeric_owner=True, **extra)


def _refuse_outward_name(name: str, member: str) -> None:
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"member {member!r} is named outside of the root")


def _is_below(path: str, root: str) -> bool:
    return os.path.commonpath([path, root]) == root
