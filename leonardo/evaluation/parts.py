"""An evaluation in parts, for an array of jobs: which tasks a part has, and the parts put together.

An attempt's seed hangs on its task alone, so a part gives what the whole would have given: the joined record is that of
an evaluation in one piece, but for the wall time, which is the parts' sum, and for the rounding of a policy's float32
sums, which the number of rows in a batch may change.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import TypeVar

from leonardo.errors import InputError
from leonardo.evaluation.compare import ABSENT
from leonardo.evaluation.records import EvaluationRecord, Part, read_record
from leonardo.evaluation.statistics import pass_rate
from leonardo.files import flat, write_atomic

Item = TypeVar("Item")

_AGAIN = "Evaluate the parts again under the same settings"


def positions_of(number: int, count: int, total: int) -> list[int]:
    """The places, in a list of ``total`` tasks, of part ``number`` (from 1) of ``count``: every ``count``-th.

    Raises:
        InputError: there are more parts than tasks.
    """
    if count > total:
        raise InputError(f"{total} tasks are too few for {count} parts", "Take fewer parts")
    return list(range(number - 1, total, count))


def part_name(name: str, number: int, count: int) -> str:
    """A part's record is ``evaluation-<this>.json``; one part is the whole."""
    return name if count == 1 else f"{name}-part-{number}-of-{count}"


def part_files(folder: Path, name: str) -> list[Path]:
    """The records of ``name``'s parts in ``folder``."""
    found = folder.glob(f"evaluation-{name}-part-*-of-*.json")
    return sorted(path for path in found if path.stem[len(f"evaluation-{name}-part-") :].replace("-of-", "").isdigit())


def join(parts: Mapping[str, EvaluationRecord]) -> EvaluationRecord:
    """Put the parts of one evaluation together; ``parts`` by what to call them (their files).

    Raises:
        InputError: a part is missing, stands twice, is of another policy, or was made under other pins; names it.
    """
    numbered = _numbered(parts)
    for name, record in parts.items():
        _require_its_figures(name, record)
    (first_name, first), *others = parts.items()
    shared = _shared(first)
    for name, record in others:
        theirs = _shared(record)
        for key in sorted(shared.keys() | theirs.keys()):
            left, right = shared.get(key, ABSENT), theirs.get(key, ABSENT)
            if left != right:
                raise InputError(
                    f"{first_name} and {name} are no parts of one evaluation: {key} is {left} and {right}", _AGAIN
                )
    _require_all(numbered)
    placed = {
        place: task
        for part, record in numbered.values()
        for place, task in zip(part.positions, record.tasks, strict=True)
    }
    whole = numbered[1][0]
    if sorted(placed) != list(range(whole.total)):
        raise InputError(f"the parts have {len(placed)} of {whole.total} tasks, or some of them twice", _AGAIN)
    tasks = [placed[place] for place in range(whole.total)]
    if twice := [name for name, count in Counter(task.task_id for task in tasks).items() if count > 1]:
        raise InputError(f"task {twice[0]} is in two parts", _AGAIN)
    pins = first.pins | whole.whole
    rate = pass_rate([task.attempts for task in tasks], _number(first_name, first, "seed"))
    failures: Counter[str] = Counter()
    for record in parts.values():
        failures.update(record.failures_by_class)
    return EvaluationRecord(
        model=first.model,
        weights=first.weights,
        pins=pins,
        tasks=tasks,
        pass_rate=rate.value,
        pass_rate_ci=rate.interval,
        infrastructure_failures=rate.excluded,
        failures_by_class=dict(failures),
        seconds=round(sum(record.seconds for record in parts.values()), 3),
    )


def join_files(paths: Sequence[Path], output: Path) -> EvaluationRecord:
    """Read parts, write the whole to ``output`` and, where all parts kept them, the trajectories beside it.

    Raises:
        InputError: as :func:`join`, or a file is no record.
    """
    if not paths:
        raise InputError(f"there are no parts for {output}", "Name the records of the parts")
    parts = {str(path): read_record(path, EvaluationRecord) for path in paths}
    record = join(parts)
    if all(part.trajectories for part in parts.values()):
        record = record.model_copy(update={"trajectories": f"{output.stem}-trajectories.jsonl"})
        lines: dict[str, list[str]] = {}
        for path, part in zip(paths, parts.values(), strict=True):
            if Path(part.trajectories).name != part.trajectories:
                raise InputError(f"{path}: trajectories is no name of a file: {part.trajectories}", _AGAIN)
            for line in _lines(path.with_name(part.trajectories)):
                lines.setdefault(_task_of(line, path.with_name(part.trajectories)), []).append(line)
        ordered = [line for task in record.tasks for line in lines.get(task.task_id, ())]
        write_atomic(output.with_name(record.trajectories), "".join(f"{line}\n" for line in ordered))
    record.write(output)
    return record


def _require_its_figures(name: str, record: EvaluationRecord) -> None:
    """A record's figures are those of its attempts, as many as its pins say."""
    attempts = _number(name, record, "attempts")
    for task in record.tasks:
        if len(task.attempts) != attempts:
            raise InputError(f"{name}: {task.task_id} has {len(task.attempts)} attempts of {attempts}", _AGAIN)
    rate = pass_rate([task.attempts for task in record.tasks], _number(name, record, "seed"))
    same = record.pass_rate == rate.value or isclose(record.pass_rate or 0.0, rate.value or 0.0, rel_tol=1e-9)
    if not same or record.infrastructure_failures != rate.excluded:
        raise InputError(
            f"{name}: pass_rate {record.pass_rate} with {record.infrastructure_failures} attempts left out is not that "
            f"of its attempts: {rate.value} with {rate.excluded}",
            _AGAIN,
        )


def _number(name: str, record: EvaluationRecord, pin: str) -> int:
    value = record.pins.get(pin)
    if type(value) is not int:
        raise InputError(f"{name}: the pin {pin} is {ABSENT if value is None else value}, no whole number", _AGAIN)
    return value


def _task_of(line: str, path: Path) -> str:
    """The task of a trajectory."""
    try:
        return str(json.loads(line)["extra"]["task_id"])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise InputError(f"{path} has a line that is no trajectory: {line[:60]}", _AGAIN) from error


def _numbered(parts: Mapping[str, EvaluationRecord]) -> dict[int, tuple[Part, EvaluationRecord]]:
    found: dict[int, tuple[Part, EvaluationRecord]] = {}
    names: dict[int, str] = {}
    for name, record in parts.items():
        part = record.part
        if part is None:
            raise InputError(f"{name} is a whole evaluation, no part of one", "Name parts only")
        if not part.number <= part.count <= part.total:
            raise InputError(f"{name} is part {part.number} of {part.count}, of {part.total} tasks in all", _AGAIN)
        if part.number in found:
            raise InputError(f"part {part.number} stands twice: {names[part.number]} and {name}", "Name each once")
        if len(part.positions) != len(record.tasks):
            raise InputError(f"{name} has {len(record.tasks)} tasks at {len(part.positions)} places", _AGAIN)
        found[part.number], names[part.number] = (part, record), name
    return found


def _shared(record: EvaluationRecord) -> dict[str, object]:
    """What all parts have in common, by name: all pins but those that are a part's own."""
    assert record.part is not None
    pins = {name: value for name, value in record.pins.items() if name not in record.part.whole}
    shape = {"parts": record.part.count, "tasks in all": record.part.total}
    return {
        "model": record.model,
        "weights": record.weights,
        **shape,
        **flat(pins),
        **flat({"whole": record.part.whole}),
    }


def _require_all(numbered: Mapping[int, tuple[Part, EvaluationRecord]]) -> None:
    count = next(iter(numbered.values()))[0].count
    if missing := sorted(set(range(1, count + 1)) - numbered.keys()):
        raise InputError(
            f"part {missing[0]} of {count} is missing{f', and {len(missing) - 1} more' if missing[1:] else ''}",
            "Make it: the same command with its --shard",
        )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"{path} cannot be read ({reason})", "It belongs to a part: make that again") from error
