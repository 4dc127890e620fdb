"""File transfer inside a sandbox, by process 1 itself: the image needs no ``cat`` or ``tar``.

Everything here sees only the sandbox's own file system, so the worst a hostile path can do is confuse the sandbox. It
must not block process 1 for ever, though: pipes and devices are opened without waiting, and only files are read.
"""

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Iterator

from leonardo.sandbox import linux

_OPENAT2, _NO_MAGIC_LINKS = 437, 2

MOST_READ = 256 << 20
"""Bytes; a larger file is not moved through memory."""


def prepare(folders: list[str], links: dict[str, str], sizes: dict[str, int], data: bytes) -> None:
    """The steps of a reset at once, without a process: folders, links where no folder is, and files of mode 755, whose
    contents ``data`` holds one after the other."""
    for folder in folders:
        _make_folders(_absolute(folder))
    for path, target in links.items():
        path = _absolute(path)
        if not os.path.isdir(path):
            if os.path.lexists(path):
                os.unlink(path)
            os.symlink(target, path)
    start = 0
    for path, size in sizes.items():
        write(path, data[start : start + size])
        os.chmod(_absolute(path), 0o755)
        start += size


def write(path: str, data: bytes) -> None:
    """Write a file, making its parent folders."""
    path = _absolute(path)
    _make_folders(path.rpartition("/")[0])
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
    descriptor = _open(_absolute(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
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


def _absolute(path: str) -> str:
    return path if path.startswith("/") else f"/{path}"


def _make_folders(path: str) -> None:
    """As :func:`os.makedirs`, whose several functions would cost each sandbox some pages."""
    folder = ""
    for part in filter(None, path.split("/")):
        folder += f"/{part}"
        try:
            os.mkdir(folder)
        except FileExistsError:
            continue
    if folder and not stat.S_ISDIR(os.stat(folder).st_mode):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), folder)


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


def extract(root: str, entries: list[dict], data: bytes) -> None:
    """Make the ``entries`` of an archive (see archives.py) below ``root`` (made if absent), the contents of whose files
    ``data`` holds one after the other. What would land outside by way of a link is refused.

    Links may change meanwhile: a folder is opened a step at a time, following none, once it is known where it lies.
    """
    root = _absolute(root)
    _make_folders(root)
    real_root = os.path.realpath(root)
    start = 0
    for entry in entries:
        with _opened_folder(os.path.join(real_root, os.path.dirname(entry["name"])), real_root, entry) as parent:
            _make(entry, parent, real_root, data[start : start + entry["size"]])
        start += entry["size"]


def _make(entry: dict, parent: int, root: str, content: bytes) -> None:
    name = os.path.basename(entry["name"])
    if entry["kind"] == "folder":
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
        with _opened_folder(os.path.join(root, entry["name"]), root, entry) as folder:
            _set_attributes(entry, folder)
        return
    try:
        if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
            os.unlink(name, dir_fd=parent)  # never write through what stands there
    except FileNotFoundError:
        pass
    match entry["kind"]:
        case "link":
            os.symlink(entry["target"], name, dir_fd=parent)
        case "same":
            target = os.path.join(root, entry["target"])
            with _opened_folder(os.path.dirname(target), root, entry) as there:
                os.link(os.path.basename(target), name, src_dir_fd=there, dst_dir_fd=parent, follow_symlinks=False)
        case "pipe":
            os.mkfifo(name, entry["mode"], dir_fd=parent)
        case _:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(name, flags, 0o600, dir_fd=parent)
            try:
                view = memoryview(content)
                while view:
                    view = view[os.write(descriptor, view) :]
                _set_attributes(entry, descriptor)
            finally:
                os.close(descriptor)


def _set_attributes(entry: dict, descriptor: int) -> None:
    with contextlib.suppress(OSError):  # an id that this namespace does not have
        os.chown(descriptor, entry["user"], entry["group"])
    os.chmod(descriptor, entry["mode"])
    os.utime(descriptor, (entry["time"], entry["time"]))


@contextlib.contextmanager
def _opened_folder(path: str, root: str, entry: dict) -> Iterator[int]:
    """A folder below ``root``, made if absent; ValueError where ``path`` leads elsewhere."""
    real = os.path.realpath(path)
    if os.path.commonpath([real, root]) != root:
        raise ValueError(f"member {entry['name']!r} leads out of the root through a link")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open("/", flags)
    try:
        for part in filter(None, real.split("/")):
            try:
                below = os.open(part, flags, dir_fd=descriptor)
            except FileNotFoundError:
                os.mkdir(part, 0o755, dir_fd=descriptor)
                below = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)
