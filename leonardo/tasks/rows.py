"""Rows of a data set -> tasks.

Two shapes are read. The data set's own: ``task_id``, ``description``, ``container_def``, ``test_final_state`` and,
where a row has them, ``kind`` (or ``family``) and ``reference_solution``. And the converted form that upstream trains
on: ``messages``, ``ground_truth``, ``env_config``, with the task data beside it (:mod:`leonardo.tasks.task_data`).

Rows come through ``datasets``. Its JSON reader guesses types (a column of dates becomes timestamps, and the text is
gone), so JSON lines are read as lines of text and decoded here one by one, and every complaint has its line number.
"""

import json
import logging
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leonardo.errors import InputError
from leonardo.tasks.task import Task
from leonardo.tasks.task_data import TaskData, read_task_data
from leonardo.tasks.verifier import verifier_files

_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_SPLIT_OF_NAME = re.compile(r"(train|validation|valid|dev|test|held-out|heldout|evaluation)(?=[-._])")
_FIELDS = ("task_id", "description", "container_def", "test_final_state")


@dataclass(frozen=True)
class _Row:
    """A row as it was read and the words that say where."""

    where: str
    values: Mapping[str, Any]


def read_tasks(
    source: str | Path,
    *,
    revision: str | None = None,
    split: str = "train",
    limit: int | None = None,
    ids: Collection[str] | None = None,
    task_data: str | Path | None = None,
) -> list[Task]:
    """Read tasks, in the order of their rows.

    Args:
        source: a JSONL or Parquet file, a folder of them, or the id of a hub data set (``owner/name``), a string; a
            ``Path`` is always local.
        revision: the commit, tag or branch of a hub data set; asked for, so that a run can be repeated.
        split: the split of a hub data set, or of a folder whose files are named by split (``train-00000.parquet``);
            files that name no split are ``train``.
        limit: read at most so many tasks.
        ids: read only these tasks, all of which must be there.
        task_data: folder or tarball of the converted form's files; by default looked for beside the rows.

    Raises:
        InputError: the source or a row cannot be used; says the file, the row, the field and what to do.
    """
    if limit is not None and limit < 1:
        raise InputError(f"limit is {limit}", "Ask for one task or more")
    wanted = set(ids) if ids is not None else None
    rows: dict[str, _Row] = {}
    for row in _read_rows(source, revision, split):
        task_id = _task_id(row)
        if task_id in rows:
            raise InputError(
                f"{row.where}: field 'task_id' repeats {task_id!r} of {rows[task_id].where}", "Make ids unique"
            )
        if wanted is None or task_id in wanted:
            rows[task_id] = row
            if limit is not None and len(rows) >= limit:
                break
    if wanted is not None and limit is None and (missing := sorted(wanted - rows.keys())):
        shown = ", ".join(missing[:5]) + (", ..." if len(missing) > 5 else "")
        raise InputError(f"{source} holds no task {shown}", "Look the ids up in the rows' task_id")
    if not rows:
        raise InputError(f"{source} holds no rows", "Give a file with one JSON object a line, or a Parquet file")
    data = _converted_data(source, task_data, [task_id for task_id, row in rows.items() if _is_converted(row)])
    return [
        _converted_task(task_id, row, data.get(task_id, TaskData())) if _is_converted(row) else _own_task(task_id, row)
        for task_id, row in rows.items()
    ]


# --- rows -----------------------------------------------------------------------------------------------------------


def _read_rows(source: str | Path, revision: str | None, split: str) -> Iterator[_Row]:
    path = Path(source)
    if path.exists():
        for file in _files(path, split):
            yield from _read_file(file)
    elif isinstance(source, str) and _HUB_ID.fullmatch(source) and not path.suffix:
        yield from _read_hub(source, revision, split)
    else:
        raise InputError(f"No rows at {source}", "Give a JSONL or Parquet file, or a folder of them")


def _files(path: Path, split: str) -> list[Path]:
    if path.is_file():
        if path.suffix not in (".jsonl", ".json", ".parquet"):
            raise InputError(
                f"{path} is neither JSONL nor Parquet", "Name it .jsonl or .parquet, according to its content"
            )
        return [path]
    patterns = ("*.jsonl", "*.parquet", "data/*.jsonl", "data/*.parquet")
    found = sorted(file for pattern in patterns for file in path.glob(pattern))
    splits = {file: match.group(1) if (match := _SPLIT_OF_NAME.match(file.name)) else "train" for file in found}
    chosen = [file for file in found if splits[file] == split]
    if not chosen:
        have = ", ".join(sorted(set(splits.values()))) or "none"
        raise InputError(f"{path} holds no rows of split {split!r} (splits there: {have})", "Give another split")
    return chosen


def _read_file(path: Path) -> Iterator[_Row]:
    if not path.stat().st_size:
        return  # the readers below take an empty file for a broken one
    if path.suffix == ".parquet":
        for number, values in enumerate(_load(str(path), "parquet", data_files=str(path), split="train"), 1):
            yield _Row(f"{path} row {number}", values)
        return
    lines = _load(str(path), "text", data_files=str(path), split="train", keep_linebreaks=False)
    for number, line in enumerate((entry["text"] for entry in lines), 1):
        if not line.strip():
            continue
        where = f"{path} row {number}"
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{where}: not JSON ({error})", "Write one JSON object a line") from error
        if not isinstance(values, dict):
            raise InputError(f"{where}: a JSON {type(values).__name__}, not an object", "Write one JSON object a line")
        yield _Row(where, values)


def _read_hub(name: str, revision: str | None, split: str) -> Iterator[_Row]:
    if not revision:
        raise InputError(
            f"{name} is a hub data set without a revision", "Pin it: give the commit that the rows come from"
        )
    for number, values in enumerate(_load(f"{name}@{revision}", name, revision=revision, split=split), 1):
        yield _Row(f"{name}@{revision} {split} row {number}", values)


def _load(where: str, builder: str, **arguments: Any) -> list[dict[str, Any]]:
    """Load through ``datasets``; what it caches of local files is gone afterwards, the hub's cache stays."""
    import datasets  # heavy, and only needed here

    local = "data_files" in arguments
    with tempfile.TemporaryDirectory(prefix="leonardo-rows-") as cache, _quiet(datasets):
        try:
            loaded = datasets.load_dataset(builder, cache_dir=cache if local else None, **arguments)
            return loaded.to_list()
        except Exception as error:  # datasets, pyarrow and the hub raise families of their own
            cause = error.__cause__ or error
            reason = " ".join(str(cause).split()) or type(cause).__name__
            if local:
                raise InputError(f"{where} cannot be read ({reason[:300]})", "Check that the file is whole") from error
            raise InputError(
                f"{where} cannot be had from the hub or its cache ({reason[:300]})",
                "Check name, revision and split; offline, fetch it once where there is a network, or give local files",
            ) from error


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    logger = logging.getLogger("datasets")  # what it says of a broken file is in our own line
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if shown:
            datasets.enable_progress_bars()


# --- fields ---------------------------------------------------------------------------------------------------------


def _text(row: _Row, name: str, hint: str) -> str:
    """A field that must be there and be text with something in it."""
    value = row.values.get(name)
    if value is None:
        have = ", ".join(sorted(key for key, entry in row.values.items() if entry is not None)) or "none"
        raise InputError(f"{row.where}: field {name!r} is missing (fields there: {have})", hint)
    if not isinstance(value, str):
        raise InputError(
            f"{row.where}: field {name!r} is {type(value).__name__}, not text", f"Write {name} as a string"
        )
    if not value.strip():
        raise InputError(f"{row.where}: field {name!r} is empty", hint)
    if half := re.search("[\ud800-\udfff]", value):
        raise InputError(
            f"{row.where}: field {name!r} holds half a character (\\u{ord(half[0]):04x}) at {half.start()}",
            "Write characters whole: no file can hold it",
        )
    return value


def _optional_text(row: _Row, name: str) -> str | None:
    return _text(row, name, "Leave it out if there is none") if row.values.get(name) not in (None, "") else None


def _is_converted(row: _Row) -> bool:
    return "env_config" in row.values and row.values.get("container_def") is None


def _task_id(row: _Row) -> str:
    if _is_converted(row):
        value = _environment(row).get("task_id") or row.values.get("ground_truth")
        if isinstance(value, list) and len(value) == 1:
            value = value[0]
        row = _Row(row.where, {**row.values, "task_id": value})
    task_id = _text(row, "task_id", "Give every row a unique id")
    if not _ID.fullmatch(task_id):
        raise InputError(
            f"{row.where}: field 'task_id' is {task_id[:140]!r}",
            "Use at most 128 letters, digits, '.', '_' and '-', not beginning with '.' or '-': it names folders",
        )
    return task_id


# --- the data set's own shape ---------------------------------------------------------------------------------------


def _own_task(task_id: str, row: _Row) -> Task:
    needed = f"A row holds {', '.join(_FIELDS)}"
    return Task(
        id=task_id,
        instruction=_text(row, "description", needed),
        definition=_text(row, "container_def", needed),
        tests=verifier_files(_text(row, "test_final_state", needed)),
        kind=_optional_text(row, "kind") or _optional_text(row, "family") or "",
        reference_solution=_optional_text(row, "reference_solution"),
        initial_tests=verifier_files(initial) if (initial := _optional_text(row, "test_initial_state")) else {},
    )


# --- the converted form ---------------------------------------------------------------------------------------------


def _environment(row: _Row) -> Mapping[str, Any]:
    """The row's sandbox settings. ``env_config`` is one entry, a list, or has ``env_configs``; or JSON of it."""
    value = row.values["env_config"]
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{row.where}: field 'env_config' is not JSON ({error})", "Write a JSON object") from error
    if isinstance(value, dict) and value.get("env_configs"):
        value = value["env_configs"]
    entries = value if isinstance(value, list) else [value]
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        raise InputError(
            f"{row.where}: field 'env_config' is {type(row.values['env_config']).__name__} without an entry",
            "Write an object with env_name, task_id and image",
        )
    return next((entry for entry in entries if entry.get("task_id")), entries[0])


def _converted_data(source: str | Path, task_data: str | Path | None, ids: list[str]) -> dict[str, TaskData]:
    if not ids:
        return {}
    if task_data is not None:
        return read_task_data(Path(task_data), ids)
    folder = Path(source) if Path(source).is_dir() else Path(source).parent
    for candidate in (folder / "task-data.tar.gz", folder / "task-data", folder):
        if candidate.is_file() or (candidate / ids[0]).is_dir():
            return read_task_data(candidate, ids)
    raise InputError(
        f"{source}: rows of the converted form without task data beside them", "Give task_data: its folder or tarball"
    )


def _converted_task(task_id: str, row: _Row, data: TaskData) -> Task:
    where = f"{row.where}: task data of {task_id}"
    tests = data.below("tests")
    if "test.sh" not in tests:
        raise InputError(f"{where} holds no tests/test.sh", "Check that task data and rows belong together")
    own_image = data.text("image.txt", where).strip()
    image = _environment(row).get("image") or own_image
    if not isinstance(image, str) or not image:
        raise InputError(f"{row.where}: neither env_config.image nor image.txt names an image", "Name one of them")
    set_up = data.text("setup.sh", where)
    return Task(
        id=task_id,
        instruction=data.text("instruction.md", where).strip() or _last_user_message(row),
        # an image.txt names an image that was made for this task: its set-up is in it
        definition=f"Bootstrap: docker\nFrom: {image}\n\n%post\n{set_up}" if set_up.strip() and not own_image else "",
        tests=tests,
        seeds=data.below("environment/seeds"),
        image=image,
        kind=_optional_text(row, "kind") or _optional_text(row, "family") or "",
        reference_solution=_optional_text(row, "reference_solution"),
    )


def _last_user_message(row: _Row) -> str:
    messages = row.values.get("messages")
    if isinstance(messages, list):
        for message in reversed(messages):
            if isinstance(message, dict) and message.get("role") == "user" and isinstance(message.get("content"), str):
                return _text(_Row(row.where, {"messages": message["content"]}), "messages", "Write an instruction")
    raise InputError(f"{row.where}: no instruction.md, and field 'messages' holds no user text", "Add one of them")
