"""A job's script beside programs that answer as Slurm's do, where the order of signals has to be sure."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leonardo.jobs.folder import events, write_folder
from leonardo.jobs.plan import JobPlan, Resources
from leonardo.jobs.render import render

_SRUN = """case "$*" in
*jobs.arrive*) exit $ARRIVED ;;
*jobs.step*) echo $PPID > script; kill -USR1 $PPID; exit 5 ;;
*) exec rm -rf -- "${@: -1}" ;;
esac"""

_SQUEUE = """[ -z "$TOLD" ] || kill -$TOLD $(cat script)
echo RUNNING"""


@pytest.fixture
def plan(tmp_path: Path) -> JobPlan:
    """A small job, and Slurm's commands."""
    (tmp_path / "bin").mkdir()
    for name, program in (("srun", _SRUN), ("squeue", _SQUEUE), ("scontrol", "touch requeued")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{program}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    asked = Resources("test", 1, 5, 1, 0.5, 0.1)
    return JobPlan(
        "small", "small", ("true",), tmp_path / "run", tmp_path, Path(sys.executable), tmp_path / "node", asked
    )


def run(plan: JobPlan, **variables: str) -> tuple[int, list[str]]:
    """The script's exit code and events."""
    script = write_folder(plan, render(plan))
    path = f"{plan.project / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "SLURM_JOB_ID": "41", "PYTHONPATH": str(Path.cwd()), "ARRIVED": "0"}
    done = subprocess.run(["bash", script], env=environment | variables, timeout=30)
    return done.returncode, [event.event for event in events(plan.folder)]


@pytest.mark.parametrize("told", ["", "TERM"])
def test_a_job_that_is_cancelled_while_the_queue_is_asked_is_not_queued_again(plan: JobPlan, told: str) -> None:
    """TERM counts to the last; and no scratch is made once it was removed."""
    code, seen = run(plan, TOLD=told)
    assert (plan.project / "requeued").exists() == (not told)
    assert not list((plan.project / "node").iterdir())
    assert seen == [
        "started",
        "told to stop: USR1",
        "the main step ended without a word",
        *(["told to stop: TERM", "ended"] if told else ["queued again"]),
    ]
    assert bool(code) == bool(told)


def test_a_job_whose_nodes_are_not_ready_leaves_no_scratch(plan: JobPlan) -> None:
    """Though the check was not given to any node."""
    assert run(plan, ARRIVED="3")[0] == 3
    assert not list((plan.project / "node").iterdir())
