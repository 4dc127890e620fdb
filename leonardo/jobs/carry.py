"""One folder with all that a cluster without a network needs, and its digests: made here, verified and placed there.

::

    contents.json      path -> size and SHA-256 of every file
    models/<name>/     checkpoints, each with pin.json: its name and revision
    data/<name>        rows
    wheels/            packages of upstream's environment
    assets.tar         bases and prepared states (leonardo.assets.bundle)
    upstream.tar       upstream's checkout, with the patch stack on it
    project.bundle     this project, for git clone

Both ways go on where they were interrupted: what is there and whole is passed over.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from leonardo.errors import InputError
from leonardo.files import read_json, require_writable, sha256_file, write_json
from leonardo.holding import AT_WORK
from leonardo.jobs.space import require_room

CONTENTS = "contents.json"

PLACED = ("models", "data", "wheels")
"""What is copied to the site's shared folder as it is."""

Tell = Callable[[str], None]
Contents = dict[str, dict[str, int | str]]
"""Path within the bundle -> size and SHA-256."""


def begin(bundle: Path) -> None:
    """Make a bundle's folder, or go on in one.

    Raises:
        InputError: it is something else: a checkout, or a folder with files that no bundle brought there.
    """
    if (bundle / ".git").exists():
        raise InputError(f"{bundle.absolute()} is a checkout, and no bundle", "Name a folder for the bundle alone")
    if (bundle / CONTENTS).is_file():
        return
    if bundle.is_dir() and any(bundle.iterdir()):
        raise InputError(f"{bundle.absolute()} holds something else", "Name a new folder for the bundle alone")
    bundle.mkdir(parents=True, exist_ok=True)
    write_json(bundle / CONTENTS, {})  # no bundle yet, and the next one that goes on here knows it by this


def add(bundle: Path, source: Path, name: str) -> int:
    """Put a copy of a file or folder into the bundle as ``name``. Returns the number of files.

    Links are followed: what arrives is the files. What an earlier folder of that name had besides is removed.
    """
    targets = set()
    for path in _files(source):
        target = bundle / name / path.relative_to(source) if source.is_dir() else bundle / name
        _place(path.resolve(), target, sha256=None)
        targets.add(target)
    if source.is_dir():
        for old in set((bundle / name).rglob("*")) - targets:
            if not old.is_dir():
                old.unlink()
    return len(targets)


def seal(bundle: Path, tell: Tell = print) -> Contents:
    """Write the digests of everything in the bundle. Returns them."""
    files: Contents = {}
    for path in _files(bundle):
        if path != bundle / CONTENTS:
            name = path.relative_to(bundle).as_posix()
            files[name] = {"size": path.stat().st_size, "sha256": sha256_file(path)}
    if not files:
        raise InputError(f"{bundle} is empty", "Name rows, models or wheels to carry")
    write_json(bundle / CONTENTS, files)
    size = sum(int(entry["size"]) for entry in files.values())
    tell(f"{bundle}: {len(files)} files, {size / 1e6:,.1f} MB, digests in {CONTENTS}")
    return files


def verify(bundle: Path) -> Contents:
    """Hold a bundle to its digests.

    Raises:
        InputError: it is none, or a file is missing or damaged; names the first.
    """
    files = _contents(bundle)
    for name, entry in files.items():
        path = bundle / name
        if linked := next(
            (each for each in (path, *path.parents) if each.is_symlink() and bundle in each.parents), None
        ):
            raise InputError(
                f"{bundle}: {linked.relative_to(bundle)} is a link", "make bundle makes none: copy it again"
            )
        if not path.is_file():
            raise InputError(f"{bundle}: {name} is missing", "Copy it again")
        if path.stat().st_size != entry["size"] or sha256_file(path) != entry["sha256"]:
            raise InputError(f"{bundle}: {name} is damaged", "Copy it again")
    return files


def place(bundle: Path, shared: Path, files: Contents, tell: Tell = print) -> int:
    """Copy models, data and wheels of a verified bundle below ``shared``. Returns the number of files that were new.

    Raises:
        InputError: ``shared`` cannot be written to, or has no room for them; nothing is written then.
    """
    require_writable(shared)
    shared.mkdir(parents=True, exist_ok=True)
    carried = {name: entry for name, entry in files.items() if PurePosixPath(name).parts[0] in PLACED}
    sizes = {name: int(entry["size"]) for name, entry in carried.items()}
    wanted = sum(size for name, size in sizes.items() if not _is_of_size(shared / name, size))
    require_room({shared: wanted}, "the bundle")
    new = sum(_place(bundle / name, shared / name, str(entry["sha256"])) for name, entry in carried.items())
    tell(f"{shared}: {new} of {len(carried)} files are new")
    return new


def _contents(bundle: Path) -> Contents:
    try:
        files = read_json(bundle / CONTENTS)
        right = all(type(entry["size"]) is int and isinstance(entry["sha256"], str) for entry in files.values())
    except (OSError, InputError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{bundle} is no bundle ({CONTENTS} cannot be read)", "make bundle makes one") from error
    if not files:
        raise InputError(f"{bundle} is not finished ({CONTENTS} is empty)", "Make it again: it goes on")
    names = [PurePosixPath(name) for name in files]
    if not right or not all(name.parts for name in names):
        raise InputError(f"{bundle} is no bundle ({CONTENTS} is no list of files)", "make bundle makes one")
    if any(name.is_absolute() or ".." in name.parts for name in names):
        raise InputError(f"{bundle} is no bundle: a file would lie outside", "make bundle makes one")
    return dict(files)


def _is_of_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size == size


def _place(source: Path, target: Path, sha256: str | None) -> bool:
    """Copy a file, whole or not at all. Returns whether it was not there."""
    if _is_of_size(target, source.stat().st_size):
        if sha256 is None:
            if source.samefile(target) or sha256_file(target) == sha256_file(source):
                return False
        elif sha256_file(target) == sha256:
            return False
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.part")
    part.unlink(missing_ok=True)
    try:
        _copy(source, part)  # no hard link: who edits the one would edit the other
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return True


def _copy(source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
        with target.open("rb+") as stream:
            os.fsync(stream.fileno())
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):  # which names the source
            raise OSError(error.errno, error.strerror, str(target.parent)) from error
        raise


def _files(place: Path) -> Iterator[Path]:
    if place.is_file():
        yield place
        return
    if not place.is_dir():
        raise InputError(f"{place} is not there", "Name what is to be carried")
    for path in sorted(place.rglob("*")):
        within = path.relative_to(place).parts
        if path.is_symlink() and not path.exists():
            raise InputError(f"{path} is a link that leads nowhere", "Mend it: it would be missing there")
        if path.is_file() and not path.name.endswith((".part", AT_WORK)) and ".cache" not in within:
            yield path
