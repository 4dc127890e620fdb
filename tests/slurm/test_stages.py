"""Stages in jobs of a real Slurm: the shipped ones as the scheduler sees them, a calibration that runs."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leonardo.engine.desk.policy import save_policy
from leonardo.evidence import read
from leonardo.gates.steps import read_records
from leonardo.jobs import slurm
from leonardo.jobs.folder import read_plan
from leonardo.jobs.render import render
from leonardo.tasks.desk import DeskTask
from tests.engine.conftest import arms_policy, desk_tasks, untrained
from tests.jobs.shipped import VARIABLES, plans
from tests.rootfs import build_root_archive
from tests.slurm.conftest import PROJECT, SITE, ended, wait_for
from tests.stages.test_policies import SMALL, record_of, write_rows

__all__ = ["arms_policy", "desk_tasks"]

CALIBRATION = """\
name: calibrate-small
shows: a calibration runs in a job; nothing is said about a signal
corpus: {train: 8, held_out: 4, unprepared: 64}
attempts: 1
episode: {steps: 2, turn_tokens: 16}
warm_start: {steps: 6, batch: 8}
desk: {steps: 2, groups: 2, group_size: 4, wanted_groups: 1, rounds: 1}
job: {minutes: 20, cores: 2, memory: 4, tmp: 1}
criteria:
  - {figure: exit_code, equals: 0, reason: "the trainer ends well"}
  - {figure: evaluated_pairs, least: 4, reason: "base and trained are evaluated"}
"""


def test_shipped_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler would take every script of the shipped site, stages and models."""
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    seen = 0
    for plan in plans():
        script = tmp_path / "job.sh"
        script.write_text(render(plan))
        assert slurm.test_only(script) == "", plan.name
        seen += 1
    assert seen >= 9


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A site file with the tests' own base image."""
    archive = build_root_archive(tmp_path / "root.tar")
    bases = f"  ubuntu:22.04: {{registry: false, substitute: {{kind: archive, path: {archive}, reason: a test}}}}"
    path = tmp_path / "site.yaml"
    path.write_text(SITE.format(cache=tmp_path / "cache", shared=tmp_path / "shared", bases=bases))
    return path


def leonardo(*words: object, fails: bool = False, app: str = "launch") -> str:
    """``leonardo launch ...``; its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEONARDO_CACHE")}
    command = [sys.executable, "-m", "leonardo.cli", app, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode != 0) == fails, done.stdout + done.stderr
    return done.stdout + done.stderr


def evaluate(*words: object, fails: bool = False) -> str:
    """``leonardo evaluate ...``; its output."""
    return leonardo(*words, fails=fails, app="evaluate")


def test_calibration_in_a_job(site: Path, tmp_path: Path) -> None:
    """From a login node: check, submit, follow, collect; the stage's own records and ledger are there."""
    stage = tmp_path / "calibrate-small.yaml"
    stage.write_text(CALIBRATION)
    said = leonardo("check", stage, "--site", site, "--account", "others", "--out", tmp_path / "out", fails=True)
    assert "slurm.account: account others is none of yours" in said
    assert json.loads((tmp_path / "out/launch-check.json").read_text())["ok"] is False
    said = leonardo("submit", stage, "--site", site)
    assert said.startswith("job "), said
    run = Path(said.rpartition("folder ")[2].strip())
    followed = leonardo("follow", run, "--every", "0.5")
    assert "completed" in followed and "calibrate-small passes" in followed
    collected = leonardo("collect", run)
    assert "ok: COMPLETED, exit code 0, 1 starts" in collected
    entries = read(run.parent / "ledger.jsonl")
    assert [(entry.name, entry.verdict) for entry in entries] == [
        ("calibrate-small", "pass"),
        ("job calibrate-small-desk", "pass"),
    ]
    assert json.loads((run / "evidence.json").read_text())["figures"]["steps"] == 2


def test_documented_evaluation(site: Path, tmp_path: Path, arms_policy: Path, desk_tasks: list[DeskTask]) -> None:
    """The lines of docs/evaluation.md as they stand there; only the site is another than the one that they are for."""
    section = (PROJECT / "docs/evaluation.md").read_text().partition("## In parts, as an array")[2]
    lines = section.split("```")[1]
    run = tmp_path / "tmax-leonardo/runs/pilot-desk-seed1-20260101T000000"
    shutil.copytree(arms_policy, run / "policy")
    write_rows(run / "held-out.jsonl", 6)
    other = untrained(desk_tasks)
    base = save_policy(tmp_path / "base", other.model, other.tokenizer)
    (run / "run.json").write_text(json.dumps({"base": str(base)}))
    text = site.read_text().replace(f"{tmp_path}/shared", f"{tmp_path}/tmax-leonardo")
    site.write_text(text.replace("most_minutes: 60", "most_minutes: 240"))
    program = tmp_path / "bin/leonardo"
    program.parent.mkdir()
    program.write_text(f"""#!/bin/bash
[ "$1 $2" != "launch evaluate" ] || set -- "$@" --site {site}
exec {sys.executable} -m leonardo.cli "$@"
""")
    program.chmod(0o755)
    known = {name: value for name, value in os.environ.items() if name != "LEONARDO_CACHE"}
    known |= {"WORK": str(tmp_path), "PATH": f"{program.parent}:{known['PATH']}", "PYTHONPATH": str(PROJECT)}
    command = ["bash", "-eu", "-o", "pipefail", "-c", lines]
    done = subprocess.run(command, capture_output=True, text=True, env=known, cwd=tmp_path)
    assert "8 completed" in done.stdout and "ok: COMPLETED, exit code 0, 8 starts" in done.stdout, done.stderr
    assert "trained: " in done.stdout and (tmp_path / "out/evaluate.json").is_file(), done.stderr


def test_evaluation_in_an_array(site: Path, tmp_path: Path, arms_policy: Path, desk_tasks: list[DeskTask]) -> None:
    """Base and trained, two parts each: joined they are the records of one piece, which can be compared."""
    rows = write_rows(tmp_path / "rows.jsonl", 6)
    other = untrained(desk_tasks)
    base = save_policy(tmp_path / "base", other.model, other.tokenizer)
    policies = (f"base={base}", f"trained={arms_policy}")
    options = ("--tasks", rows, *SMALL, "--site", site)
    whole = evaluate("policies", *policies, *options, "--out", tmp_path / "whole")
    assert "trained: " in whole
    said = leonardo("evaluate", *policies, *options, "--parts", "2", "--minutes", "10")
    run = Path(said.rpartition("folder ")[2].strip())
    assert "4 completed" in leonardo("follow", run, "--every", "0.5", "--quiet")
    part = run / "records/evaluation-base-part-2-of-2.json"
    kept = part.read_bytes()
    part.unlink()
    refused = leonardo("collect", run, fails=True)
    assert "base: part 2 of 2 is missing" in refused and "trained: " in refused
    part.write_bytes(kept)
    collected = leonardo("collect", run)
    assert "ok: COMPLETED, exit code 0, 4 starts" in collected
    for name in ("base", "trained"):
        record = record_of(run / f"records/evaluation-{name}.json")
        assert record == record_of(tmp_path / f"whole/evaluation-{name}.json")
    assert 0 < record.pass_rate < 1
    records = [run / f"records/evaluation-{name}.json" for name in ("base", "trained")]
    evaluate("compare", *records, "--out", tmp_path / "out", fails=True)
    assert json.loads((tmp_path / "out/evaluate.json").read_text())["figures"]["difference"] == record.pass_rate


@pytest.mark.slow
def test_a_stage_that_the_time_limit_interrupts_goes_on_from_its_checkpoint(site: Path, tmp_path: Path) -> None:
    """USR1 between two steps: the job queues itself again, and the same run ends well, each step recorded once."""
    stage = tmp_path / "pilot-small.yaml"
    longer = CALIBRATION.replace("calibrate-small", "pilot-small").replace("desk: {steps: 2,", "desk: {steps: 10,")
    stage.write_text(longer.replace("criteria:", "resume: true\ncriteria:"))
    run = Path(leonardo("submit", stage, "--site", site).rpartition("folder ")[2].strip())
    job = str(read_plan(run)["job"])
    deadline = time.monotonic() + 120
    while not (seen := list(run.parent.glob("pilot-small-desk-*/steps.jsonl"))) or len(read_records(seen[0])) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    subprocess.run(["scancel", "--batch", "--signal=USR1", job], check=True)
    (state,) = wait_for(job, ended, 150)
    said = "".join(path.read_text() for path in run.glob("slurm-*.log"))
    assert (state.name, state.exit_code, state.restarts) == ("COMPLETED", 0, 1), said[-3000:]
    assert "which was interrupted" in said and "ok: COMPLETED, exit code 0, 2 starts" in leonardo("collect", run)
    (folder,) = run.parent.glob("pilot-small-desk-*")
    assert [record.step for record in read_records(folder / "steps.jsonl")] == list(range(1, 11))
    stage_entry, _ = read(run.parent / "ledger.jsonl")
    assert (stage_entry.name, stage_entry.verdict, stage_entry.figures["updates"]) == ("pilot-small", "pass", 10)


def test_doctor_on_a_node(site: Path, tmp_path: Path) -> None:
    """From a login node: the probes run in a job on a compute node, which says that it has no driver of GPUs."""
    command = [sys.executable, "-m", "leonardo.cli", "doctor", "--node", "--site", str(site), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    verdict = json.loads((tmp_path / "doctor.json").read_text())
    assert verdict["pins"]["node"] in ("node1", "node2"), done.stdout + done.stderr
    found = {entry["id"]: entry["state"] for entry in verdict["figures"]["findings"]}
    assert (found["slurm"], found["partitions"], found["clock"]) == ("ok", "ok", "ok")
    assert (found["gpus"], done.returncode) == ("missing", 1)
