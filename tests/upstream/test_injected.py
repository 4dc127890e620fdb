"""Failures injected into real runs of the trainer: it goes on or ends truly, and none becomes a reward.

Needs the patched checkout and upstream's environment; minutes a test: ``python -m pytest -m slow tests/upstream``.
``LEONARDO_TEST_SITE`` names another site than ``desk``.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from leonardo.gates.steps import read_records
from leonardo.overlay.stack import read_stack, unpatched
from leonardo.settings import find_settings

PROJECT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("LEONARDO_UPSTREAM_PYTHON") or PROJECT / ".venv-upstream/bin/python")
TREE = Path(os.environ.get("LEONARDO_UPSTREAM") or PROJECT / "upstream")
PATIENCE = 900

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.is_file(), reason="upstream's environment is not there (make upstream-env)"),
    pytest.mark.skipif(
        bool(unpatched(read_stack(PROJECT / "patches"), TREE)), reason="the stack is not applied (make apply-patches)"
    ),
]


@dataclass
class Run:
    """A stage's run: its process, and what it has written."""

    process: "subprocess.Popen[str]"
    runs: Path
    out: Path

    @property
    def folder(self) -> Path:
        """The run's folder, once it is there."""
        return next(path for path in self.runs.iterdir() if path.is_dir())

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the run does."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert self.process.poll() is None, "the run ended before"
            assert time.monotonic() < deadline
            time.sleep(0.2)

    def steps(self) -> int:
        """How many steps have been recorded."""
        try:
            return len(read_records(self.folder / "steps.jsonl"))
        except (StopIteration, FileNotFoundError):
            return 0

    def found(self, name: str) -> psutil.Process | None:
        """A process of the run whose title holds ``name``."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if name in " ".join(process.cmdline()):
                    return process
            except psutil.Error:
                continue
        return None

    def end(self) -> dict[str, Any]:
        """Wait for the end. Returns figures and the supervisor's outcome."""
        self.process.wait(PATIENCE)
        outcome = json.loads((self.folder / "outcome.json").read_text())
        written = self.out / "smoke.json"
        figures = json.loads(written.read_text())["figures"] if written.is_file() else {}
        return figures | {"outcome": outcome}

    def lost(self) -> int:
        """Rollouts that were excluded, by the trainer's own list."""
        path = self.folder / "failures.jsonl"
        return len(path.read_text().splitlines()) if path.is_file() else 0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Starts a smoke run of two or more small updates with a fault."""
    started: list[subprocess.Popen[str]] = []

    def begin(fault: str = "", updates: int = 2, runs: Path | None = None) -> Run:
        site = yaml.safe_load(find_settings(os.environ.get("LEONARDO_TEST_SITE") or "desk", "sites").read_text())
        site["upstream"]["environment"] |= {
            "PYTHONPATH": str(Path(__file__).parent / "faults"),
            "LEONARDO_TEST_FAULT": fault,
        }
        for source in site["bases"].values():
            if source["substitute"]["kind"] == "archive":
                place = find_settings(os.environ["LEONARDO_TEST_SITE"], "sites").parent
                source["substitute"]["path"] = str((place / source["substitute"]["path"]).resolve())
        stage = yaml.safe_load(find_settings("smoke", "stages").read_text())
        stage["upstream"] |= {"num_samples_per_prompt_rollout": 4, "total_episodes": 16 * updates}
        site_file = tmp_path / f"{site['name']}.yaml"  # as it is called, since its name is a shipped one's
        site_file.write_text(yaml.safe_dump(site))
        (tmp_path / "smoke.yaml").write_text(yaml.safe_dump(stage))
        runs = runs or tmp_path / "runs"
        command = [sys.executable, "-m", "leonardo.cli", "stage", "run", str(tmp_path / "smoke.yaml")]
        command += ["--engine", "upstream", "--force", "a run with an injected fault proves nothing"]
        command += ["--site", str(site_file), "--runs", str(runs), "--out", str(tmp_path / "out")]
        command += ["--upstream", str(TREE), "--upstream-python", str(PYTHON)]
        if policy := os.environ.get("LEONARDO_TEST_POLICY"):
            command += ["--policy", policy]
        process = subprocess.Popen(command, text=True, env={**os.environ, "PYTHONPATH": str(PROJECT)})
        started.append(process)
        return Run(process, runs, tmp_path / "out")

    yield begin
    for process in started:
        process.terminate()
        process.wait(120)


def rewards_are_true(run: Run) -> None:
    """Lost rollouts have no reward, and as many are missing as were lost."""
    records = read_records(run.folder / "steps.jsonl")
    missing = sum(reward is None for record in records for group in record.rewards for reward in group)
    assert missing == sum(record.infrastructure_failures for record in records)
    for record in records:
        trained_on = sum(len({reward for reward in group if reward is not None}) > 1 for group in record.rewards)
        assert record.groups_kept <= trained_on


def test_resets_that_fail_now_and_then_are_tried_again(start):
    run = start("reset:0.2")
    found = run.end()
    assert (found["exit_code"], found["updates"], found["leftovers"]) == (0, 2, 0)
    rewards_are_true(run)


def test_tasks_whose_resets_always_fail_are_left_out_and_counted(start):
    run = start("task:0.2")
    found = run.end()
    assert (found["exit_code"], found["leftovers"]) == (0, 0)
    assert run.lost() > 0
    assert found["groups_without_signal_trained"] == 0
    rewards_are_true(run)


def test_an_environment_that_is_killed_is_replaced(start):
    run = start(updates=4)
    run.until(lambda: run.steps() >= 1)
    run.found("SWERLVanilluxSandboxEnv").kill()
    found = run.end()
    assert (found["exit_code"], found["updates"], found["leftovers"]) == (0, 4, 0)
    rewards_are_true(run)


def test_an_engine_that_is_killed_ends_the_run_with_its_class(start):
    run = start(updates=8)
    run.until(lambda: run.steps() >= 1)
    run.found("EngineCore").kill()
    found = run.end()
    assert found["exit_code"] not in (0, None)
    assert not found["outcome"]["asked_to_end"], "it was ended since it stalled"
    assert found["outcome"]["leftovers"] == []
    rewards_are_true(run)


def test_asked_to_end_in_the_middle_of_a_step(start):
    run = start(updates=8)
    run.until(lambda: run.steps() >= 1)
    run.process.send_signal(signal.SIGTERM)
    found = run.end()
    assert run.process.returncode == 143
    assert (found["outcome"]["exit_code"], found["outcome"]["asked_to_end"]) == (143, True)
    assert found["outcome"]["leftovers"] == []
    rewards_are_true(run)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_in_the_run_folder(start, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(disk)], check=True)
    try:
        run = start(updates=8, runs=disk / "runs")
        run.until(lambda: run.steps() >= 1)
        with (disk / "filler").open("wb") as stream:
            try:
                while True:
                    stream.write(bytes(1 << 20))
            except OSError:
                pass
        run.process.wait(PATIENCE)
        assert run.process.returncode != 0
        rewards_are_true(run)
        assert shutil.disk_usage(disk).free < 1 << 20
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
