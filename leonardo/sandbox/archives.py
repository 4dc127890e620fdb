"""Tar archives as a sandbox's process 1 takes them: a list of entries and the contents of the files.

They are read on the controller's side, since process 1 has no room for a tar library; what is done with the entries in
a sandbox is :func:`leonardo.sandbox.serverfiles.extract`.
"""

import io
import tarfile
from typing import Any

Entry = dict[str, Any]
"""``name``; ``kind``: file, folder, link, same (a hard link) or pipe; ``mode``, ``user``, ``group``, ``time``; ``size``
of a file's content; ``target`` of a link."""

_KINDS = {
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "link",
    tarfile.LNKTYPE: "same",
    tarfile.FIFOTYPE: "pipe",
}


def read_archive(data: bytes) -> tuple[list[Entry], bytes]:
    """The entries of an archive (plain or compressed), and the contents of its files one after the other.

    Raises ValueError, naming the member, for names that lead outside of the root, and for devices.
    """
    entries, contents = [], []
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:*") as archive:
            for member in archive:
                entry, content = _entry(archive, member)
                entries.append(entry)
                contents.append(content)
    except (tarfile.TarError, EOFError) as error:
        raise ValueError(str(error)) from error
    return entries, b"".join(contents)


def _entry(archive: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[Entry, bytes]:
    _refuse_outward_name(member.name, member.name)
    if member.islnk():
        _refuse_outward_name(member.linkname, member.name)
    if member.ischr() or member.isblk():
        raise ValueError(f"member {member.name!r} is a device")
    kind = _KINDS.get(member.type, "file")
    stream = archive.extractfile(member) if kind == "file" else None
    content = stream.read() if stream else b""
    entry = {
        "name": member.name,
        "kind": kind,
        "mode": member.mode & 0o7777,
        "time": member.mtime,
        "user": member.uid,
        "group": member.gid,
        "size": len(content),
        "target": member.linkname,
    }
    return entry, content


def _refuse_outward_name(name: str, member: str) -> None:
    if name.startswith("/") or ".." in name.split("/"):
        raise ValueError(f"member {member!r} is named outside of the root")
