"""The supervisor with a head that stands for Ray's (the real one runs where upstream's environment is)."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

HEAD = """
import signal, socket, sys, time
port = int(next(argument for argument in sys.argv if argument.startswith("--port=")).partition("=")[2])
server = socket.create_server(("127.0.0.1", port))
print("Ray runtime started", flush=True)
time.sleep(60)
"""


@pytest.fixture
def run(tmp_path):
    """Starts a supervisor for a trainer, given as Python; returns the process."""
    started = []

    def start(trainer: str, head: str = HEAD, grace: float = 0.5) -> "subprocess.Popen[bytes]":
        plan = {
            "trainer": [sys.executable, "-c", trainer],
            "ray": [sys.executable, "-c", head],
            "environment": dict(os.environ),
            "folder": str(tmp_path),
            "log": str(tmp_path / "trainer.log"),
            "outcome": str(tmp_path / "outcome.json"),
            "scratch": str(tmp_path / "scratch"),
            "grace": grace,
        }
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        process = subprocess.Popen(
            [sys.executable, "-m", "leonardo.engine.upstream.supervisor", str(tmp_path / "plan.json")],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def outcome(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "outcome.json").read_text())


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + 20
    while not (path.is_file() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.05)
    return path.read_text()


def gone(number: int, within: float = 10.0) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if not psutil.pid_exists(number) or psutil.Process(number).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize(("trainer", "code"), [("", 0), ("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 137)])
def test_the_trainers_exit_code_is_the_runs(run, tmp_path, trainer, code):
    assert run(trainer).wait(30) == 0
    found = outcome(tmp_path)
    assert (found["exit_code"], found["leftovers"], found["reason"]) == (code, [], "")
    assert not (tmp_path / "scratch").exists()


def test_a_process_that_outlives_the_trainer_is_counted_and_ended(run, tmp_path):
    run(
        "import subprocess; child = subprocess.Popen(['sleep', '4321'], start_new_session=True)\n"
        "open('child', 'w').write(f'{child.pid}\\n')"
    ).wait(30)
    assert outcome(tmp_path)["leftovers"] == ["sleep 4321"]
    assert gone(int(wait_for(tmp_path / "child")))


def test_asked_to_end_it_ends_the_trainer_and_says_so(run, tmp_path):
    supervisor = run("import os, time; open('trainer', 'w').write(f'{os.getpid()}\\n'); time.sleep(60)")
    trainer = int(wait_for(tmp_path / "trainer"))
    supervisor.send_signal(signal.SIGTERM)
    supervisor.wait(30)
    found = outcome(tmp_path)
    assert (found["exit_code"], found["asked_to_end"]) == (143, True)
    assert gone(trainer)


def test_a_trainer_that_does_not_heed_term_is_killed(run, tmp_path):
    supervisor = run(
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "open('trainer', 'w').write(f'{os.getpid()}\\n'); time.sleep(60)"
    )
    trainer = int(wait_for(tmp_path / "trainer"))
    supervisor.send_signal(signal.SIGTERM)
    supervisor.wait(30)
    assert outcome(tmp_path)["exit_code"] == 137
    assert gone(trainer)


def test_a_head_that_does_not_start_is_the_reason_and_the_trainer_is_not_started(run, tmp_path):
    run("open('ran', 'w')", head="raise SystemExit('no space for sockets')").wait(30)
    found = outcome(tmp_path)
    assert found["exit_code"] is None
    assert found["reason"] == "Ray did not start (no space for sockets / no space for sockets / no space for sockets)"
    assert not (tmp_path / "ran").exists()


def test_it_ends_with_whoever_started_it(run, tmp_path):
    """The starter is killed with -9: nothing it started stays."""
    plan = tmp_path / "plan.json"
    run("").wait(30)  # writes the plan
    values = json.loads(plan.read_text())
    values["trainer"][2] = "import os, time; open('trainer', 'w').write(f'{os.getpid()}\\n'); time.sleep(60)"
    plan.write_text(json.dumps(values))
    starter = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys; subprocess.run([sys.executable, '-m', 'leonardo.engine.upstream.supervisor', sys.argv[1]])",
            str(plan),
        ],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    trainer = int(wait_for(tmp_path / "trainer"))
    starter.kill()
    starter.wait()
    assert gone(trainer)
