"""Parts of an evaluation: together they are the whole, and what is no part of it is refused by name."""

import json
import re

import pytest

from leonardo.errors import InputError
from leonardo.evaluation import EvaluationRecord, evaluate, read_record, tasks_digest
from leonardo.evaluation.parts import join, join_files, part_files, part_name, positions_of
from leonardo.evaluation.records import Part
from leonardo.tasks.task import Task
from tests.evaluation.test_evaluate import harness

PINS = {"driver": "namespaces", "sampling": {"temperature": 1.0}}
TASKS = [
    Task(id=f"t{number}", instruction="do", definition="", tests={"test.sh": b"true"}, kind="ab"[number % 2])
    for number in range(7)
]


def reward(task: str, seed: int) -> float | None:
    return None if task == "t5" else float(seed % 3 == 0)


def made(tasks=TASKS, **changes) -> EvaluationRecord:
    settings = {"attempts": 3, "seed": 7, "pins": PINS | {"assets": "all"}, "model": "m", "weights": "w"} | changes
    trajectory = {"to_trajectory": lambda rollout: {"extra": {"task_id": rollout.task_id}, "seed": rollout.seed}}
    return evaluate(harness(reward), tasks, **settings | trajectory)


def part(number: int, count: int = 3, tasks=TASKS, **changes) -> EvaluationRecord:
    places = positions_of(number, count, len(tasks))
    about = Part(
        number=number,
        count=count,
        positions=places,
        total=len(tasks),
        whole={"tasks": tasks_digest(tasks), "assets": "all"},
    )
    pins = PINS | {"assets": f"of part {number}"}
    return made([tasks[place] for place in places], part=about, **{"pins": pins} | changes)


def test_the_parts_are_the_whole(tmp_path):
    whole = made(output=tmp_path / "evaluation-whole.json")
    for number in (3, 1, 2):
        part(number, output=tmp_path / f"evaluation-{part_name('m', number, 3)}.json")
    (tmp_path / "evaluation-m-part-of-mine.json").write_text("no part")
    files = part_files(tmp_path, "m")
    assert len(files) == 3
    joined = join_files(files, tmp_path / "evaluation-m.json")
    assert joined == read_record(tmp_path / "evaluation-m.json", EvaluationRecord)
    own = {"seconds": 0.0, "trajectories": ""}
    assert joined.model_copy(update=own) == whole.model_copy(update=own)
    assert joined.part is None and [task.task_id for task in joined.tasks] == [task.id for task in TASKS]
    assert joined.infrastructure_failures == 3 and joined.failures_by_class == {"runtime": 3}
    lines = (tmp_path / "evaluation-m-trajectories.jsonl").read_text()
    assert lines == (tmp_path / "evaluation-whole-trajectories.jsonl").read_text()
    assert len([json.loads(line) for line in lines.splitlines()]) == 21


def named(*records: EvaluationRecord) -> dict[str, EvaluationRecord]:
    return {f"file{number}": record for number, record in enumerate(records, start=1)}


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        (lambda: [part(1), part(3)], "part 2 of 3 is missing"),
        (lambda: [part(3)], "part 1 of 3 is missing, and 1 more"),
        (lambda: [part(1), part(2), part(2), part(3)], "part 2 stands twice: file2 and file3"),
        (lambda: [part(1), part(2), part(3, weights="v")], "file1 and file3 are no parts of one evaluation: weights"),
        (
            lambda: [part(1), part(2, seed=8), part(3)],
            "file1 and file2 are no parts of one evaluation: seed is 7",
        ),
        (
            lambda: [part(1), part(2, pins={"driver": "apptainer", "sampling": {"temperature": 1.0}}), part(3)],
            "driver is namespaces and apptainer",
        ),
        (lambda: [part(1), part(2, tasks=[*TASKS[:6], TASKS[0]])], "whole.tasks is"),
        (lambda: [part(1, 2), part(2, 3)], "parts is 2 and 3"),
        (lambda: [part(1), made()], "file2 is a whole evaluation, no part of one"),
    ],
)
def test_what_is_no_part_of_it_is_refused(parts, says):
    with pytest.raises(InputError, match=re.escape(says)):
        join(named(*parts()))


def test_a_part_with_places_of_another_is_refused():
    wrong = part(2)
    moved = wrong.model_copy(update={"part": wrong.part.model_copy(update={"positions": [0, 3]})})
    with pytest.raises(InputError, match="the parts have 5 of 7 tasks"):
        join(named(part(1), moved, part(3)))


def test_more_parts_than_tasks_are_refused():
    assert [positions_of(number, 3, 7) for number in (1, 2, 3)] == [[0, 3, 6], [1, 4], [2, 5]]
    with pytest.raises(InputError, match="2 tasks are too few for 3 parts"):
        positions_of(1, 3, 2)


def _about(record: EvaluationRecord, **changes) -> EvaluationRecord:
    return record.model_copy(update={"part": record.part.model_copy(update=changes)})


def _first_task(record: EvaluationRecord, **changes) -> EvaluationRecord:
    first, *others = record.tasks
    return record.model_copy(update={"tasks": [first.model_copy(update=changes), *others]})


def _pins(record: EvaluationRecord, **changes) -> EvaluationRecord:
    pins = {name: value for name, value in (record.pins | changes).items() if value is not None}
    return record.model_copy(update={"pins": pins})


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda record: _about(record, count=1_000_000_000), "file1 is part 1 of 1000000000, of 7 tasks in all"),
        (lambda record: _pins(record, seed=None), "file1: the pin seed is"),
        (lambda record: _pins(record, seed="x"), "file1: the pin seed is x, no whole number"),
        (lambda record: _pins(record, attempts=2), "has 3 attempts of 2"),
        (lambda record: _first_task(record, attempts=[], seeds=[]), "t0 has 0 attempts of 3"),
        (lambda record: record.model_copy(update={"pass_rate": 0.987}), "file1: pass_rate 0.987 with"),
        (lambda record: record.model_copy(update={"infrastructure_failures": 9}), "with 9 attempts left out"),
    ],
)
def test_figures_that_are_not_those_of_the_attempts_are_refused(edit, says):
    with pytest.raises(InputError, match=re.escape(says)):
        join(named(edit(part(1)), part(2), part(3)))


def test_trajectories_lie_beside_their_record(tmp_path):
    paths = [tmp_path / f"evaluation-{part_name('m', number, 2)}.json" for number in (1, 2)]
    for number, path in enumerate(paths, 1):
        part(number, 2).model_copy(update={"trajectories": "../x.jsonl"}).write(path)
    with pytest.raises(InputError, match=r"trajectories is no name of a file: \.\./x"):
        join_files(paths, tmp_path / "evaluation-m.json")


def test_a_task_in_two_parts_is_refused():
    with pytest.raises(InputError, match="task t1 is in two parts"):
        join(named(_first_task(part(1), task_id="t1"), part(2), part(3)))


@pytest.mark.parametrize("content", [b"x\n", b"{}\n", b"5\n", b"\xff\n", b"[" * 100_000])
def test_trajectories_that_are_none_are_one_line(tmp_path, content):
    paths = [tmp_path / f"evaluation-{part_name('m', number, 2)}.json" for number in (1, 2)]
    for number, path in enumerate(paths, 1):
        part(number, 2, output=path)
    (tmp_path / f"{paths[1].stem}-trajectories.jsonl").write_bytes(content)
    with pytest.raises(InputError, match=r"part-2-of-2-trajectories\.jsonl"):
        join_files(paths, tmp_path / "evaluation-m.json")
    assert not (tmp_path / "evaluation-m.json").exists()
