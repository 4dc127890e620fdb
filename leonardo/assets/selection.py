"""Which rows of a data set: the first, some by name, a sample that stays the same, a share of an array job's tasks."""

import re
from collections.abc import Sequence
from pathlib import Path

from leonardo.errors import InputError
from leonardo.files import sha256_bytes
from leonardo.options import RowOptions
from leonardo.tasks.rows import read_tasks
from leonardo.tasks.task import Task


def select(
    tasks: Sequence[Task],
    *,
    first: int | None = None,
    ids: Sequence[str] = (),
    ids_file: Path | None = None,
    sample: int | None = None,
    shard: str = "",
) -> list[Task]:
    """The tasks that every one of the criteria leaves, in their order.

    Args:
        first: so many from the beginning.
        ids: these.
        ids_file: those named in a file, one a line; what follows a ``#`` is left out.
        sample: so many, chosen by a hash of their ids: of a larger data set the same, and more.
        shard: ``k/n``, the k-th (from 1) of n parts.

    Raises:
        InputError: an id that no task has, a file that cannot be read, a shard that is none.
    """
    wanted = [*ids, *(_ids_in(ids_file) if ids_file else ())]
    if wanted:
        known = {task.id for task in tasks}
        if missing := [name for name in wanted if name not in known]:
            raise InputError(f"{len(missing)} ids are of no row, such as {missing[0]}", "Name rows that are there")
        tasks = [task for task in tasks if task.id in set(wanted)]
    if first is not None:
        tasks = tasks[:first]
    if sample is not None:
        chosen = sorted(tasks, key=lambda task: sha256_bytes(task.id.encode()))[:sample]
        names = {task.id for task in chosen}
        tasks = [task for task in tasks if task.id in names]
    if shard:
        number, count = parse_shard(shard)
        tasks = [task for task in tasks if int(sha256_bytes(f"shard {task.id}".encode()), 16) % count == number - 1]
    return list(tasks)


def read_chosen(rows: Path, which: RowOptions, shard: str = "") -> list[Task]:
    """The tasks of a file or folder that :func:`select` leaves. Raises InputError."""
    if which.ids is not None and not words(which.ids):
        raise InputError(f"--ids {which.ids!r} names no row", "Leave it out to take all")
    return select(
        read_tasks(rows),
        first=which.first,
        ids=words(which.ids or ""),
        ids_file=which.ids_file,
        sample=which.sample,
        shard=shard,
    )


def words(text: str) -> list[str]:
    """The words of ``text``, which has commas between."""
    return [word.strip() for word in text.split(",") if word.strip()]


def parse_shard(text: str) -> tuple[int, int]:
    """``k/n`` as two numbers. Raises InputError."""
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise InputError(f"{text[:40]!r} is no shard", "Write k/n with k from 1 to n, such as 3/8")
    return int(match[1]), int(match[2])


def _ids_in(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read ({error})", "Give a text file with one id a line") from error
    if not (names := [name for line in lines if (name := line.partition("#")[0].strip())]):
        raise InputError(f"{path} names no row", "Leave it out to take all")
    return names
