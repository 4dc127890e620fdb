"""The soak in its short form, and that it would notice what it is for."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import soak
from leonardo.errors import InfrastructureError
from leonardo.sandbox.backend import ExecutionResult
from leonardo.sandbox.driver import Driver, LayerStack

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}


def test_a_short_soak_is_clean(driver: Driver, tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks" / "soak.py", "--seconds", "6", "--concurrency", "8"]
    label = "namespaces-one-id" if "one user id" in driver.degraded else driver.name
    done = subprocess.run(
        [*command, "--driver", label, "--seed", "3", "--out", tmp_path],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    verdict = json.loads((tmp_path / "soak.json").read_text())
    figures = verdict["figures"]
    assert done.returncode == 0, done.stdout + done.stderr
    assert verdict["ok"]
    assert (figures["wrong"], figures["leftovers"], figures["unclassified"]) == (0, 0, 0)
    assert figures["episodes"] > 10


def test_kills_are_told_and_what_they_cost_is_classified(
    driver: Driver, stack: LayerStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soak, "KILL_SHARE", 1.0)
    run = soak.Soak(driver, stack, seed=5, marker="36000.5")
    # helpers of the driver of these tests alone: others of this process must live
    monkeypatch.setattr(soak, "VICTIMS", ("sandbox",) * 3)
    monkeypatch.setattr(soak, "helpers", lambda: {"sandbox": _sandboxes(run)})
    run.work(4, time.monotonic() + 30, lambda: None)
    assert run.tally.episodes == 4
    assert not run.tally.wrong
    assert not run.tally.unclassified
    assert sum(run.tally.failures.values()) == run.tally.kills["sandbox"]


def _sandboxes(run: soak.Soak) -> set[int]:
    """Process 1 of the sandboxes that hold the marker."""
    below = soak.descendants()
    found = set()
    for process, parent in below.items():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if b"sleep\x0036000.5\x00" in Path(f"/proc/{process}/cmdline").read_bytes():
                found.add(parent)
    return found


def _helpers_below(process: int) -> list[int]:
    found, pending = [], [process]
    while pending:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            children = Path(f"/proc/{pending[-1]}/task/{pending.pop()}/children").read_text().split()
            pending += map(int, children)
            found += [int(child) for child in children if Path(f"/proc/{child}/comm").read_text() == "sandbox\n"]
    return found


def test_a_wrong_result_a_leak_and_an_unknown_failure_are_noticed(tmp_path: Path) -> None:
    with pytest.raises(soak.WrongResultError, match="instead of"):
        soak.expect(ExecutionResult("other", "", 0), "token", 0, stderr="")
    before = soak.Holdings.now(tmp_path)
    assert before.over(before) == {}
    (tmp_path / "left").touch()
    child = subprocess.Popen(["sleep", "3600.77"])
    try:
        assert soak.Holdings.now(tmp_path).over(before) == {"files": 1, "processes": 1}
        assert soak.with_marker("3600.77") == {"services": 1}
    finally:
        child.kill()
        child.wait()
    assert soak.cause_of(InfrastructureError("something odd")) == ""
    assert soak.cause_of(InfrastructureError("the sandbox ended: killed by signal 9")) == "sandbox killed"


def test_an_interrupted_soak_writes_what_it_has(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks" / "soak.py", "--concurrency", "2", "--out", tmp_path]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    end = time.monotonic() + 60
    while len(_helpers_below(process.pid)) < 6 and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    time.sleep(2)  # both sandboxes are under way, besides the guard, the holder, the nursery and a spare
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    if process.returncode == 3:
        pytest.skip(output)
    assert process.returncode == 1, output
    figures = json.loads((tmp_path / "soak.json").read_text())["figures"]
    assert figures["interrupted"]
    assert figures["episodes"] > 0
    assert figures["leftovers"] == 0
