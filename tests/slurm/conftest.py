"""The Slurm beside which these tests run (tests/slurm/cluster.sh), and a site on it."""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from leonardo.jobs import slurm
from leonardo.jobs.folder import note_job, write_folder
from leonardo.jobs.plan import JobPlan, Resources
from leonardo.jobs.render import render

PROJECT = Path(__file__).parents[2]
COUNTER = Path(__file__).parent / "counter.py"

SITE = """\
name: sealed
cache: {cache}
bases:
{bases}
cluster:
  account: project
  pools:
    nodes:
      {{partition: test, cores: 8, memory: 15, gpus: 4, gpu: none, gpu_memory: 64, tmp: /tmp/node, tmp_size: 3}}
  qualities:
    - {{name: normal, most_minutes: 60, most_nodes: 2}}
  roots: {{shared: {shared}, scratch: {shared}, least_free: 0.1, least_files: 100}}
  grace: 30
"""


@pytest.fixture(scope="session", autouse=True)
def place() -> Path:
    """The cluster's own folder; skips, with the reason, where there is none."""
    if "LEONARDO_TEST_SLURM" not in os.environ:
        pytest.skip("no Slurm beside these tests: make test-slurm")
    return Path(os.environ["LEONARDO_TEST_SLURM"])


@pytest.fixture
def make_plan(tmp_path: Path) -> Callable[..., JobPlan]:
    """A small job that runs a command."""

    def make(*command: str, name: str = "small", **changes: object) -> JobPlan:
        asked = Resources("test", 1, 5, 1, 0.5, 0.1, account="project", quality="normal")
        folder = tmp_path / "runs" / name
        values = {"folder": folder, "resources": asked, "grace": 30, "pins": {"site": "sealed"}} | changes
        return JobPlan(
            name=name,
            title=name,
            command=command,
            project=PROJECT,
            python=Path(sys.executable),
            scratch=Path("/tmp/node"),
            environment={"PYTHONPATH": str(PROJECT)},
            **values,  # type: ignore[arg-type]
        )

    return make


@pytest.fixture
def count(make_plan: Callable[..., JobPlan]) -> Callable[..., JobPlan]:
    """A job that counts to a number, and may then end with a code."""

    def make(goal: int, *code: int, name: str = "small", **changes: object) -> JobPlan:
        plan = make_plan(name=name, **changes)
        words = (sys.executable, str(COUNTER), str(plan.folder), str(goal), *map(str, code))
        return make_plan(*words, name=name, **changes)

    return make


def queue(plan: JobPlan, *after: str) -> str:
    """Submit a plan; its id."""
    job = slurm.submit(write_folder(plan, render(plan)), after=after)
    note_job(plan.folder, job)
    return job


def wait_for(job: str, wanted: Callable[[list[slurm.State]], bool], seconds: float = 60.0) -> list[slurm.State]:
    """Look until Slurm's word on a job is as wanted."""
    deadline = time.monotonic() + seconds
    while True:
        states = slurm.states(job)
        if wanted(states):
            return states
        if time.monotonic() > deadline:
            raise AssertionError(f"job {job} is {states} after {seconds:.0f} s")
        time.sleep(0.1)


def ended(states: list[slurm.State]) -> bool:
    """Whether all tasks have come to an end."""
    return bool(states) and all(state.ended for state in states)


def running(states: list[slurm.State]) -> bool:
    """Whether a task runs."""
    return any(state.name == "RUNNING" for state in states)
