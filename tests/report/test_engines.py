"""Both engines on one page, from run folders like those that the stages write."""

import json

import pytest

from leonardo.errors import InputError
from leonardo.evaluation.records import EvaluationRecord, RunFacts, TaskResult
from leonardo.gates.steps import append_record
from leonardo.report.engines import render_engines
from leonardo.stages.engines import SAME, compare_engines
from tests.gates.test_signal import record

PINS = {name: name for name in SAME}


def run_folder(place, engine: str, passed: int, **pins):
    """A run whose trained policy passes ``passed`` of 12 tasks and whose base passes 3."""
    folder = place / f"calibrate-{engine}"
    folder.mkdir()
    append_record(folder / "steps.jsonl", record(1))
    RunFacts(stage="calibrate", site="desk", pins={**PINS, "engine": engine, **pins}).write(folder / "run.json")
    for side, count in (("base", 3), ("trained", passed)):
        tasks = [TaskResult(task_id=f"t{n}", family="f", attempts=[int(n < count)], seeds=[n]) for n in range(12)]
        EvaluationRecord(
            model=side, pins={"driver": "d"}, tasks=tasks, pass_rate=count / 12, pass_rate_ci=None,
            infrastructure_failures=0, seconds=1.0,
        ).write(folder / f"evaluation-{side}.json")  # fmt: skip
    return folder


def test_gains_and_the_difference_between_engines_are_on_the_page(tmp_path):
    engines = compare_engines(
        run_folder(tmp_path, "desk", 9), run_folder(tmp_path, "upstream", 6), tmp_path / "engines.json"
    )
    page = render_engines(engines, tmp_path / "engines.html").read_text()
    assert "+50.0 <small>points" in page
    assert "+25.0 <small>points" in page
    assert "-25.0 <small>points" in page
    assert "upstream against desk" in page
    written = json.loads((tmp_path / "engines.json").read_text())
    assert written["ok"] is True
    assert written["figures"]["between"]["value"] == pytest.approx(-0.25)


def test_runs_on_other_tasks_are_not_compared(tmp_path):
    with pytest.raises(InputError, match="pin assets differs, assets against other"):
        compare_engines(
            run_folder(tmp_path, "desk", 9), run_folder(tmp_path, "upstream", 6, assets="other"), tmp_path / "e.json"
        )


def test_two_runs_of_one_engine_are_not_compared(tmp_path):
    first = run_folder(tmp_path, "desk", 9)
    with pytest.raises(InputError, match="both of the engine desk"):
        compare_engines(first, first, tmp_path / "e.json")


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(InputError, match=r"run\.json: no such file"):
        compare_engines(tmp_path, tmp_path, tmp_path / "e.json")
