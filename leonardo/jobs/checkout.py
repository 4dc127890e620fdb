"""A checkout as one archive: packed without its history, unpacked whole or not at all."""

import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath

from leonardo.errors import InputError

_KEPT = 0o755
"""Of a file's mode; nobody but its owner writes to it."""

_END = bytes(2 * tarfile.BLOCKSIZE)


def pack(folder: Path, archive: Path) -> None:
    """Write ``folder`` to ``archive``; the same bytes for the same files."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if ".git" in Path(info.name).parts or "__pycache__" in Path(info.name).parts:
            return None
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    archive.parent.mkdir(parents=True, exist_ok=True)
    part = archive.with_name(f".{archive.name}.part")
    try:
        with part.open("wb") as stream:
            with tarfile.open(fileobj=stream, mode="w") as written:
                written.add(folder, ".", filter=plain)
            stream.flush()
            os.fsync(stream.fileno())
        part.replace(archive)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def unpack(archive: Path, folder: Path) -> None:
    """Make ``folder`` of what :func:`pack` wrote: files, folders, and links that stay inside.

    It is made beside its place and renamed; an empty folder there is taken away.

    Raises:
        InputError: the archive is none, or holds what would lie outside or is no file.
    """
    new = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(new, ignore_errors=True)  # of one that was killed
    new.mkdir(parents=True)
    try:
        try:
            with tarfile.open(archive, "r:") as read:
                for member in read:
                    _extract(archive, read, member, new)
            with archive.open("rb") as stream:  # one that is cut short within a header seems to end there
                stream.seek(-len(_END), os.SEEK_END)
                if stream.read() != _END:
                    raise tarfile.ReadError("it ends early")
        except (tarfile.TarError, EOFError) as error:
            raise InputError(f"{archive} is no archive of a checkout ({error})", "Copy it again") from error
        if folder.is_dir():
            folder.rmdir()
        new.replace(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _extract(archive: Path, read: tarfile.TarFile, member: tarfile.TarInfo, root: Path) -> None:
    name = PurePosixPath(member.name)
    where = root / name
    if name.is_absolute() or ".." in name.parts:
        raise InputError(f"{archive}: {member.name} would lie outside of the checkout", "Make the bundle again")
    if any(parent.is_symlink() for parent in (root / part for part in name.parents)):
        raise InputError(f"{archive}: {member.name} would lie behind a link", "Make the bundle again")
    if member.isdir():
        where.mkdir(parents=True, exist_ok=True)
        return
    where.parent.mkdir(parents=True, exist_ok=True)
    if member.issym():
        leads = os.path.normpath(name.parent / member.linkname)
        if PurePosixPath(member.linkname).is_absolute() or leads.split("/")[0] == "..":
            raise InputError(f"{archive}: the link {member.name} leads outside", "Make the bundle again")
        where.symlink_to(member.linkname)
        return
    plain = member.isreg() and not member.issparse()  # one with holes may be written out to any size
    content = read.extractfile(member) if plain else None
    if content is None:
        raise InputError(f"{archive}: {member.name} is no file, folder or link", "Make the bundle again")
    with where.open("xb") as stream:
        shutil.copyfileobj(content, stream, 1 << 20)
    where.chmod(member.mode & _KEPT | 0o600)
