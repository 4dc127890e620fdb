"""Files of the uppermost layer that a sandbox gets as its own, in the writable layer, before anything is mounted.

Why: in an overlay whose lower and upper file systems differ, a file of a lower layer has an inode number of the lower
one until it is written or linked, and a hard link to it has one of the upper: ``ln a b`` leaves ``a`` and ``b`` with
different numbers, and writing to one of two hard links of a lower layer parts them. The kernel's cure (``index=on``)
is for the host's root alone. Where the files that a task is about, few and small, are in the upper layer from the
start, they behave as on a plain file system.
"""

import os
import stat
from collections.abc import Iterable

_OVERLAY = "user.overlay."


def copy(layer: str, upper: str, paths: Iterable[str]) -> None:
    """Copy files (paths relative to both folders) from ``layer`` to ``upper`` with all their attributes, and the
    folders on the way. Files that are links of each other stay so. What is no file is left out."""
    folders: dict[str, os.stat_result] = {}
    links: dict[tuple[int, int], str] = {}
    for path in paths:
        source, target = f"{layer}/{path}", f"{upper}/{path}"
        status = os.lstat(source)
        if not stat.S_ISREG(status.st_mode):
            continue
        _make_folders(layer, upper, os.path.dirname(path), folders)
        first = links.setdefault((status.st_dev, status.st_ino), target)
        if first != target:
            os.link(first, target)
            continue
        with open(source, "rb") as reader, open(target, "xb") as writer:
            while data := reader.read(1 << 20):
                writer.write(data)
        _copy_attributes(source, target, status)
    for folder in sorted(folders, key=len, reverse=True):  # the deepest first: each new entry changed its folder's time
        _copy_attributes(f"{layer}/{folder}", f"{upper}/{folder}", folders[folder])


def _make_folders(layer: str, upper: str, folder: str, made: dict[str, os.stat_result]) -> None:
    if folder in made:
        return
    if folder:
        _make_folders(layer, upper, os.path.dirname(folder), made)
        os.mkdir(f"{upper}/{folder}", 0o700)
    made[folder] = os.lstat(f"{layer}/{folder}")


def _copy_attributes(source: str, target: str, status: os.stat_result) -> None:
    os.chown(target, status.st_uid, status.st_gid)
    os.chmod(target, stat.S_IMODE(status.st_mode))
    for name in os.listxattr(source):
        if not name.startswith(_OVERLAY):
            os.setxattr(target, name, os.getxattr(source, name))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
