"""Task data beside rows of the converted form, a folder a task, in a folder or a tarball:
``<task id>/instruction.md``, ``tests/``, ``environment/seeds/``, ``setup.sh``, ``image.txt``.

A tarball is read into memory and never extracted, so no member can leave its folder and nothing is half there.
"""

import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from leonardo.errors import InputError

MAXIMUM_BYTES = 256 << 20
"""Most that one task's files may hold together."""

_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")


@dataclass
class TaskData:
    """The files of one task, by their path relative to its folder."""

    files: dict[str, bytes] = field(default_factory=dict)

    def text(self, name: str, where: str) -> str:
        """A file as text, ``""`` if it is absent."""
        try:
            return self.files.get(name, b"").decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{where}: {name} is not UTF-8 text ({error.reason})", "Save it as UTF-8") from error

    def below(self, folder: str) -> dict[str, bytes]:
        """The files below ``folder``, by their path relative to it."""
        prefix = f"{folder}/"
        return {name[len(prefix) :]: content for name, content in self.files.items() if name.startswith(prefix)}


def read_task_data(source: Path, ids: Iterable[str]) -> dict[str, TaskData]:
    """Read the files of the tasks named by ``ids``; a task without any has no entry.

    Args:
        source: a folder with a folder a task, or a tarball of it (plain, gz, xz or bz2).
    """
    wanted = set(ids)
    if source.is_dir():
        return {task_id: _read_folder(source / task_id) for task_id in sorted(wanted) if (source / task_id).is_dir()}
    if source.is_file() and source.name.endswith(_SUFFIXES):
        return _read_tarball(source, wanted)
    raise InputError(f"Task data {source} is neither a folder nor a tarball", f"Give one ({', '.join(_SUFFIXES)})")


def _read_folder(folder: Path) -> TaskData:
    data = TaskData()
    total = 0
    root = folder.resolve()
    for path in sorted(folder.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(root):
            raise InputError(f"{path} is a link that leaves the task's folder", "Put a copy of the file there")
        if path.is_file():
            total += path.stat().st_size
            _check_size(total, str(folder))
            data.files[path.relative_to(folder).as_posix()] = path.read_bytes()
    return data


def _read_tarball(source: Path, wanted: set[str]) -> dict[str, TaskData]:
    found: dict[str, TaskData] = {}
    totals: dict[str, int] = {}
    try:
        with tarfile.open(source) as archive:
            for member in archive:
                parts = PurePosixPath(member.name).parts
                if parts[:1] == (".",):
                    parts = parts[1:]
                if ".." in parts or member.name.startswith("/"):
                    raise InputError(f"{source}: member {member.name} points out of the archive", "Make it anew")
                if len(parts) < 2 or parts[0] not in wanted or member.isdir():
                    continue
                if not member.isreg():
                    raise InputError(f"{source}: member {member.name} is no plain file", "Store a copy of it")
                task_id = parts[0]
                totals[task_id] = totals.get(task_id, 0) + member.size
                _check_size(totals[task_id], f"{source}: {task_id}")
                stream = archive.extractfile(member)
                assert stream is not None  # a regular member always has content
                found.setdefault(task_id, TaskData()).files[PurePosixPath(*parts[1:]).as_posix()] = stream.read()
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise InputError(f"{source} cannot be read as a tarball ({error})", "Fetch it again") from error
    return found


def _check_size(total: int, where: str) -> None:
    if total > MAXIMUM_BYTES:
        raise InputError(f"{where} holds more than {MAXIMUM_BYTES >> 20} MiB", "Task data is meant to be small")
