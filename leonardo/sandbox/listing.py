"""A sandbox's whole file tree as text, by its process 1: nothing is asked of the image, and nothing in it can lie.

Calls of ``os`` on purpose: a file name need not be text, and what is followed and what is not is the point.
"""

import hashlib
import os
import stat

EXCLUDED = (b"/proc", b"/dev", b"/sys")
"""Not the prepared state's: made new by the kernel for every sandbox."""

_KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character",
    stat.S_IFBLK: "block",
}
_BLOCK = 1 << 20
# the kernel's own notes about how layers are merged
_OVERLAY = ("user.overlay.", "trusted.overlay.")


def listing(root: bytes = b"/") -> bytes:
    """One line an entry, sorted by path: path, kind, mode, owner, group, size, time of change in ns, what it holds
    (BLAKE2b of a file's content that is not zeros, a link's target, a device's numbers) and extended attributes.

    Paths and targets are written with their unusual bytes escaped, so that a line is a line.
    """
    lines = [_line(root, os.lstat(root))]
    folders = [root]
    while folders:
        folder = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.path in EXCLUDED:
                    continue
                status = entry.stat(follow_symlinks=False)
                lines.append(_line(entry.path, status))
                if stat.S_ISDIR(status.st_mode):
                    folders.append(entry.path)
    return "".join(sorted(lines)).encode()


def _line(path: bytes, status: os.stat_result) -> str:
    kind = stat.S_IFMT(status.st_mode)
    size = status.st_size if kind == stat.S_IFREG else 0  # a folder's depends on the file system
    held = ""
    if kind == stat.S_IFREG:
        held = _content(path)
    elif kind == stat.S_IFLNK:
        held = _text(os.readlink(path))
    elif kind in (stat.S_IFCHR, stat.S_IFBLK):
        held = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
    mode = f"{stat.S_IMODE(status.st_mode):04o}"
    owner = f"{status.st_uid}:{status.st_gid}"
    return "\t".join(
        (_text(path), _KINDS.get(kind, "?"), mode, owner, str(size), str(status.st_mtime_ns), held, _attributes(path))
    ) + ("\n")


def _content(path: bytes) -> str:
    """Digest of the blocks that hold more than zeros: a file with holes may be longer than any disk."""
    digest = hashlib.blake2b(digest_size=32)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        position = _block_with_data(descriptor, 0)
        while part := os.pread(descriptor, _BLOCK, position):
            if part.count(0) < len(part):
                digest.update(position.to_bytes(8))
                digest.update(part)
            position = _block_with_data(descriptor, position + _BLOCK)
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def _block_with_data(descriptor: int, position: int) -> int:
    """Where the first block at or after ``position`` begins that is no hole; the end of the file if there is none."""
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA) // _BLOCK * _BLOCK
    except OSError:  # ENXIO: holes only, or past the end
        return os.lseek(descriptor, 0, os.SEEK_END)


def _attributes(path: bytes) -> str:
    try:
        names = sorted(os.listxattr(path, follow_symlinks=False))
    except OSError:
        return ""
    kept = [name for name in names if not name.startswith(_OVERLAY)]
    return " ".join(f"{name}={os.getxattr(path, name, follow_symlinks=False).hex()}" for name in kept)


def _text(path: bytes) -> str:
    return repr(path)[2:-1]  # codecs that escape are loaded late, when the host's libraries are out of reach
