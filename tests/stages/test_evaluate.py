"""The commands of ``leonardo evaluate``: one verdict file, one sentence, an exit code."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from leonardo.evaluation import EvaluationRecord, TaskResult
from leonardo.stages.evaluate import evaluate_app
from tests.evaluation.jobs import write_job

PINS = {"driver": "namespaces", "tasks": "t", "attempts": 2, "harness": "h"}


def written(path: Path, passing: int, lost: int = 0, **pins: object) -> Path:
    """A record of 20 tasks, the first ``passing`` of which pass, and the last ``lost`` have no verdict."""
    rewards = [None if number >= 20 - lost else int(number < passing) for number in range(20)]
    tasks = [
        TaskResult(task_id=f"t{number:02}", family="f", attempts=[reward] * 2, seeds=[1, 2])
        for number, reward in enumerate(rewards)
    ]
    EvaluationRecord(
        model=path.stem, pins=PINS | pins, tasks=tasks, pass_rate=passing / 20, pass_rate_ci=None,
        infrastructure_failures=2 * lost, failures_by_class={"runtime": 2 * lost} if lost else {}, seconds=1,
    ).write(path)  # fmt: skip
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(evaluate_app, [*map(str, arguments)], env={"COLUMNS": "200"})


def test_compare_writes_criteria_by_name_with_value_threshold_and_verdict(tmp_path):
    base, trained = written(tmp_path / "base.json", 4), written(tmp_path / "trained.json", 14)
    result = run("compare", base, trained, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "ok: trained (70.0 %) is better than base (20.0 %): +50.0 points over 20 tasks" in result.output
    verdict = json.loads((tmp_path / "evaluate.json").read_text())
    assert verdict["ok"] is True
    assert verdict["figures"]["difference"] == 0.5
    assert verdict["figures"]["mcnemar_p"] == pytest.approx(2 / 2**10)
    criteria = verdict["criteria"]
    assert verdict["says"].startswith("trained (70.0 %) is better")
    assert set(criteria) == {"evaluated_pairs", "excluded_share", "difference_ci_low", "p_value"}
    assert criteria["evaluated_pairs"] | {"reason": ""} == {
        "value": 20, "threshold": "at least 10", "ok": True, "reason": "",
    }  # fmt: skip


@pytest.mark.parametrize(("passing", "lost", "failed"), [(5, 0, "difference_ci_low"), (14, 4, "excluded_share")])
def test_compare_fails_where_a_criterion_does(tmp_path, passing, lost, failed):
    base, trained = written(tmp_path / "base.json", 4), written(tmp_path / "trained.json", passing, lost)
    result = run("compare", base, trained, "--out", tmp_path)
    assert result.exit_code == 1
    assert f"NOT met: {failed}" in result.output
    if lost:
        assert "8 attempts without a verdict are left out of all rates" in result.output


def test_compare_refuses_with_every_reason(tmp_path):
    base = written(tmp_path / "base.json", 4)
    trained = written(tmp_path / "trained.json", 14, driver="apptainer", attempts=3)
    result = run("compare", base, trained, "--out", tmp_path)
    assert "attempts a task: 2 against 3; the sandboxes: namespaces against apptainer" in str(result.exception)
    assert not (tmp_path / "evaluate.json").exists()


def test_seeds_are_put_together(tmp_path):
    records = [
        written(tmp_path / f"{name}.json", passing) for name, passing in zip("abcd", (4, 10, 4, 11), strict=True)
    ]
    result = run("seeds", *records, "--out", tmp_path)
    figures = json.loads((tmp_path / "evaluate-seeds.json").read_text())["figures"]
    assert figures["differences"] == [pytest.approx(0.3), pytest.approx(0.35)]
    assert "differences, a seed each: +30.0, +35.0 points" in result.output
    assert "pairs" in str(run("seeds", records[0]).exception)


def test_power_says_the_tasks_and_what_given_ones_show(tmp_path):
    result = run("power", "--base", 0.3, "--difference", 0.1, "--attempts", 4, "--tasks", 50, "--out", tmp_path)
    assert result.exit_code == 1
    assert "94 tasks, attempted 4 times by each policy, show a difference of +10.0 points" in result.output
    assert "50 tasks show it with probability 0." in result.output
    records = [written(tmp_path / "base.json", 4), written(tmp_path / "trained.json", 14)]
    seen = run("power", "--measured", records[0], "--measured", records[1], "--difference", 0.5, "--out", tmp_path)
    assert "seen in base and trained, 20 tasks" in seen.output
    assert "either --base or" in str(run("power", "--difference", 0.1).exception)


def test_harbor_s_jobs_become_records_that_compare_takes(tmp_path):
    base = write_job(tmp_path / "base", {f"t{number}": [0.0, 0.0] for number in range(12)}, task_checksum="0" * 64)
    trials = {f"t{number}": [1.0, 1.0 if number else "DaytonaError"] for number in range(12)}
    trained = write_job(tmp_path / "trained", trials, model="rl", task_checksum="0" * 64)
    imported = run("import-harbor", trained, "--out", tmp_path)
    assert "1 trials have no verdict and are excluded" in imported.output
    assert "counted as 0, as Harbor does, the rate would be 95.8 %" in imported.output
    run("import-harbor", base, "--out", tmp_path)
    result = run("compare", tmp_path / "evaluation-small.json", tmp_path / "evaluation-rl.json", "--out", tmp_path)
    assert result.exit_code == 0, result.output


def test_the_published_table_stands_beside_a_record_with_what_differs(tmp_path):
    record = written(tmp_path / "mine.json", 4)
    output = run("published", "terminal-bench-2.0", "--record", record).output
    assert "27.2 ± 1.5" in output
    assert "differs: attempts a task: 2 against 5" in output
    assert "these figures may not be compared" in output
