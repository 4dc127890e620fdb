"""How a trainer ends on a real Ray: an actor with an engine process of its own, as vLLM's, and what is left of both."""

import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

import psutil
import pytest

from tests.upstream.conftest import PROJECT
from tests.processes import running

PYTHON = Path(os.environ.get("LEONARDO_UPSTREAM_PYTHON") or PROJECT / ".venv-upstream" / "bin" / "python")

TRAINER = """
import multiprocessing, os, sys, time
import ray
from leonardo.hooks.shutdown import clean_up_in_time, die_with_parent, end_on_sigterm, leave_nothing

def engine(sender):
    die_with_parent()
    sender.send(os.getpid())
    time.sleep(600)

@clean_up_in_time
def cleanup():
    ray.shutdown()

@leave_nothing
def main():
    ray.init(num_cpus=2, include_dashboard=False, runtime_env={"env_vars": dict(os.environ)})
    end_on_sigterm()

    @ray.remote
    class Actor:
        def __init__(self):
            import trainer
            context = multiprocessing.get_context("spawn")
            receiver, sender = context.Pipe(False)
            context.Process(target=trainer.engine, args=(sender,)).start()
            self.engine = receiver.recv()

        def pids(self):
            return os.getpid(), self.engine

        def work(self):
            time.sleep(600)

    try:
        actor = Actor.remote()
        print(*ray.get(actor.pids.remote()), flush=True)
        if sys.argv[1] == "well":
            return
        if sys.argv[1] == "error":
            raise RuntimeError("the cause")
        ray.get(actor.work.remote())
    finally:
        cleanup()

if __name__ == "__main__":
    main()
"""


def alive(mark: str) -> list[str]:
    """Processes that carry the mark in their environment, but Ray's own agents, which leave when they notice."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("LEONARDO_TEST") == mark and process.status() != psutil.STATUS_ZOMBIE:
                line = " ".join(process.cmdline())
                if not any(agent in line for agent in ("/ray/dashboard/", "/runtime_env/agent/", "/ray/autoscaler/")):
                    found.append(line[:200])
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code"),
    [("well", 0), ("error", 1), ("terminated", 143), ("killed", -signal.SIGKILL), ("actor killed", 1)],
)
def test_nothing_is_left(how: str, code: int, tmp_path: Path) -> None:
    if not PYTHON.is_file():
        pytest.skip("upstream's environment is not there (make upstream-env, or LEONARDO_UPSTREAM_PYTHON=...)")
    (tmp_path / "trainer.py").write_text(TRAINER)
    mark = uuid.uuid4().hex
    # Ray's sockets lie in the temporary folder: its name must be short
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{PROJECT}", "LEONARDO_TEST": mark}
    environment |= {"RAY_TMPDIR": f"/tmp/r{mark[:8]}", "RAY_USAGE_STATS_ENABLED": "0"}
    environment.pop("RAY_ADDRESS", None)
    try:
        with running(
            [str(PYTHON), str(tmp_path / "trainer.py"), how],
            stdout=subprocess.PIPE,
            stderr=(tmp_path / "log").open("w"),
            env=environment,
        ) as trainer:
            assert trainer.stdout is not None
            line = trainer.stdout.readline().split()
            assert len(line) == 2, (tmp_path / "log").read_text()[-3000:]
            actor, engine = map(int, line)
            if how in ("terminated", "killed"):
                time.sleep(1)
                trainer.send_signal(signal.SIGTERM if how == "terminated" else signal.SIGKILL)
            elif how == "actor killed":
                os.kill(actor, signal.SIGKILL)
            assert trainer.wait(timeout=60) == code, (tmp_path / "log").read_text()[-3000:]
        deadline = time.monotonic() + 10
        while psutil.pid_exists(engine) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not psutil.pid_exists(engine)
        deadline = time.monotonic() + 45  # Ray's own agents notice late that their node has gone
        while (left := alive(mark)) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert left == []
    finally:
        for process in psutil.process_iter():
            try:
                if process.environ().get("LEONARDO_TEST") == mark:
                    process.kill()
            except psutil.Error:
                continue
        subprocess.run(["rm", "-rf", f"/tmp/r{mark[:8]}"], check=False)
