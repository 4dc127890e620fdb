"""Checkpoints on rows, in one piece and in parts: the same record."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from leonardo.errors import InputError
from leonardo.evaluation import EvaluationRecord, read_record
from leonardo.stages.evaluate import evaluate_app
from leonardo.stages.policies import checkpoints_of
from tests.engine import arms
from tests.engine.conftest import arms_policy, desk_tasks

__all__ = ["arms_policy", "desk_tasks"]

SMALL = ("--turns", 2, "--turn-tokens", 40, "--attempts", 4)

VERIFIER = "#!/bin/bash\nfind / /root /workspace -maxdepth 1 -name 'COMPLETE*' | grep -q .\n"
"""What a policy of ``arms`` does now and then: it mistakes its two commands for each other."""


def write_rows(path: Path, count: int) -> Path:
    """Rows that a policy of ``arms`` solves now and then."""
    rows = [
        {
            "task_id": task.id,
            "description": task.instruction,
            "container_def": task.definition,
            "test_final_state": VERIFIER,
            "kind": task.kind,
        }
        for task in arms.tasks(count)
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(evaluate_app, [*map(str, arguments)], env={"COLUMNS": "200"})


def record_of(path: Path) -> EvaluationRecord:
    """Without what a clock or a file's name decides."""
    return read_record(path, EvaluationRecord).model_copy(update={"seconds": 0.0, "trajectories": ""})


def test_parts_give_the_record_of_one_piece(tmp_path, desk_site, arms_policy, driver):
    rows = write_rows(tmp_path / "rows.jsonl", 6)
    common = ("--tasks", rows, *SMALL, "--site", desk_site)
    whole = run("policies", f"start={arms_policy}", *common, "--out", tmp_path / "whole")
    assert whole.exit_code == 0, whole.output
    for shard in ("1/2", "2/2"):
        made = run("policies", f"start={arms_policy}", *common, "--parts", 2, "--shard", shard, "--out", tmp_path / "p")
        assert made.exit_code == 0, made.output
    assert not (tmp_path / "p/evaluation-start.json").exists()
    again = run("policies", f"start={arms_policy}", *common, "--parts", 2, "--shard", "2/2", "--out", tmp_path / "p")
    assert "evaluation-start-part-2-of-2.json: there already" in again.output
    joined = run("join", tmp_path / "p")
    assert joined.exit_code == 0, joined.output
    record = record_of(tmp_path / "p/evaluation-start.json")
    assert record == record_of(tmp_path / "whole/evaluation-start.json")
    assert 0 < record.pass_rate < 1 and len(record.tasks) == 6
    other = run("policies", f"start={arms_policy}", *common, "--seed", 1, "--parts", 2, "--out", tmp_path / "p")
    assert "is of another evaluation" in str(other.exception)
    (tmp_path / "p/evaluation-start-part-1-of-2.json").unlink()
    assert "part 1 of 2 is missing" in str(run("join", tmp_path / "p").exception)


def test_names():
    named = checkpoints_of(["base=/a/policy", "/b/trained"])
    assert [str(checkpoint) for checkpoint in named] == ["base=/a/policy", "trained=/b/trained"]
    with pytest.raises(InputError, match="two policies are called policy"):
        checkpoints_of(["/a/policy", "/b/policy"])
    with pytest.raises(InputError, match="cannot be called"):
        checkpoints_of(["../x=/a"])


def test_more_jobs_than_pieces_are_refused(tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", 2)
    refused = run("policies", "a=/nowhere", "--tasks", rows, "--parts", 2, "--shard", "1/3", "--out", tmp_path)
    assert "2 pieces of work are too few for 3 jobs" in str(refused.exception)
