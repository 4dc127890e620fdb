"""The package's example outcomes, through our harness."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from leonardo.functions.check import check_rows, judge
from leonardo.functions.checkers import Checkers
from leonardo.functions.references import changed, reference
from leonardo.functions.tasks import CATEGORIES, FunctionTask, clusters, leaks, read_tasks, split_tasks, tool_of
from leonardo.rollout.formats import FORMATS, QWEN3_XML, Call, format_named

Rows = Callable[[str], list[FunctionTask]]


@pytest.mark.parametrize("category", CATEGORIES)
def test_references_pass_and_changed_copies_do_not(checkers: Checkers, rows: Rows, category: str) -> None:
    tasks = rows(category)
    (found,) = check_rows(tasks[:: max(1, len(tasks) // 3)][:3], checkers, format_named("hermes"))
    assert found.reference_passes == found.corrupted == 3
    assert found.corrupted_passes == [] and found.reference_fails == {} and found.left_out == {}
    assert found.ok


@pytest.mark.parametrize("tool_format", FORMATS.values(), ids=FORMATS)
def test_every_format_carries_parallel_calls(checkers: Checkers, rows: Rows, tool_format) -> None:
    (found,) = check_rows(rows("parallel")[:5], checkers, tool_format)
    assert found.ok and found.reference_passes == 5


def test_a_row_without_an_answer_that_can_pass_is_listed(checkers: Checkers, rows: Rows) -> None:
    tasks = [task for task in rows("simple_java") if task.id in ("simple_java_36", "simple_java_37")]
    (found,) = check_rows(tasks, checkers, QWEN3_XML)
    assert list(found.left_out) == ["simple_java_36"] and found.reference_passes == 1


def test_a_wrong_reference_is_reported(checkers: Checkers, rows: Rows) -> None:
    task, other = rows("simple_python")[:2]
    wrong = replace(task, row={**task.row, "answer": other.row["answer"], "function": other.row["function"]})
    passes, _ = judge(wrong, reference(task), checkers, QWEN3_XML, "wrong")
    assert not passes


def test_only_one_argument_is_changed(checkers: Checkers, rows: Rows) -> None:
    (task,) = [task for task in rows("parallel") if task.id == "parallel_0"]
    ((first, second),) = reference(task)
    copies = list(changed(task))
    assert len(copies) == len(first.arguments) + len(second.arguments)
    assert [copy[0][1] == second for copy in copies] == [True] * len(first.arguments) + [False] * len(second.arguments)
    assert copies[0][0][0] == Call("spotify.play", {"artist": "Taylor Swift corrupted", "duration": 20})


def test_where_nothing_fits_any_call_fails(checkers: Checkers, rows: Rows) -> None:
    task = rows("irrelevance")[0]
    assert reference(task) == [[]]
    ((call,),) = next(changed(task))
    assert call.name == task.row["function"][0]["name"]


def test_types_become_those_of_json_schema(checkers: Checkers, rows: Rows) -> None:
    (tool, *_) = rows("simple_python")[0].tools
    parameters = tool["function"]["parameters"]
    assert parameters["type"] == "object" and parameters["properties"]["base"]["type"] == "integer"
    nested = tool_of(
        {
            "name": "f",
            "description": "",
            "parameters": {
                "type": "dict",
                "properties": {"a": {"type": "array", "items": {"type": "float"}}},
                "required": [],
            },
        }
    )
    assert nested["function"]["parameters"]["properties"]["a"]["items"] == {"type": "number"}


def test_the_published_split_has_no_leaks(checkers: Checkers) -> None:
    tasks = read_tasks(checkers)
    parts = split_tasks(tasks)
    train, held_out = parts["train"], parts["held-out"]
    assert (len(train), len(held_out)) == (3210, 1215)
    assert leaks(train, held_out) == []
    ids = {task.id for task in held_out}
    by_scenario = {task.id.rpartition("_")[2]: set() for task in tasks if task.multi_turn}
    for task in tasks:
        if task.multi_turn:
            by_scenario[task.id.rpartition("_")[2]].add(task.id in ids)
    assert all(len(sides) == 1 for sides in by_scenario.values())
    # a row that is moved is seen
    moved = next(task for cluster in clusters(tasks) if len(cluster) > 1 for task in cluster if task.id in ids)
    assert leaks([*train, moved], [task for task in held_out if task is not moved])
