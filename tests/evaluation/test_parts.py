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
