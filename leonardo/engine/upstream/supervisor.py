"""The supervisor of a trainer's run: starts Ray and the trainer, ends what is left of them, and writes how it ended.

A process of its own, because it adopts every process that loses its parent below it (Ray's daemons detach themselves):
what is there after the trainer has ended, beside Ray, is a leftover and is counted. It ends with the process that
started it. ``ray stop`` is not used: it would end every Ray on the host.

Usage: ``python -m leonardo.engine.upstream.supervisor RUN.json`` (:class:`Plan`); writes :class:`Outcome` beside it.
"""

import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

import psutil
from pydantic import BaseModel, ConfigDict

from leonardo.files import write_json

_SET_PDEATHSIG, _SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_RAY_TRIES = 3

# how a process of the trainer's run can be told from a leftover: these are Ray's own, and end with its head
_RAY_PROCESSES = ("gcs_server", "raylet", "ray::IDLE")


class Plan(BaseModel):
    """A run.

    Attributes:
        trainer: its command line.
        ray: ``ray start``'s, without address, port and temporary folder.
        environment: of both; nothing else is passed on.
        folder: where they start.
        log: of the trainer; ``<log>.ray`` of Ray.
        outcome: the file that is written at the end.
        scratch: node-local folder with a short name, for Ray's sockets. Made, and removed at the end.
        grace: seconds that the trainer has to end after TERM, and that its processes have to end after it.
    """

    model_config = ConfigDict(extra="forbid")

    trainer: list[str]
    ray: list[str]
    environment: dict[str, str]
    folder: Path
    log: Path
    outcome: Path
    scratch: Path
    grace: float = 30.0


class Outcome(BaseModel):
    """How a run ended.

    Attributes:
        exit_code: the trainer's; 128+n where a signal ended it; None where it was never started.
        asked_to_end: a signal asked the supervisor to end the run.
        reason: why it was never started, else "".
        leftovers: processes of the run that were there ``grace`` seconds after the trainer; they were killed.
        seconds: of the trainer.
    """

    model_config = ConfigDict(extra="forbid")

    exit_code: int | None
    asked_to_end: bool = False
    reason: str = ""
    leftovers: list[str] = []
    seconds: float = 0.0


class _Asked(Exception):
    """A signal asked to end."""


def main() -> int:
    """Run the plan. Exits 0 when the outcome was written, whatever it is."""
    plan = Plan.model_validate_json(Path(sys.argv[1]).read_bytes())
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # Ray keeps a file open for every worker and object
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _ask)
    try:
        outcome = _run(plan)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        _kill(_descendants())
        subprocess.run(["rm", "-rf", "--", str(plan.scratch)], check=False)
    write_json(plan.outcome, outcome.model_dump(mode="json"))
    return 0


def _ask(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough
    raise _Asked


def _run(plan: Plan) -> Outcome:
    trainer: subprocess.Popen[bytes] | None = None
    started, asked = time.monotonic(), False
    try:
        head, address = _start_ray(plan)
        with plan.log.open("ab") as log:
            trainer = subprocess.Popen(
                plan.trainer,
                cwd=plan.folder,
                env={**plan.environment, "RAY_ADDRESS": address},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        started = time.monotonic()
        trainer.wait()
    except _Asked:
        asked = True
        if trainer is not None:
            trainer.terminate()
            _wait(trainer, plan.grace)
    except (OSError, RuntimeError) as error:
        return Outcome(exit_code=None, reason=str(error))
    if trainer is None:
        return Outcome(exit_code=None, asked_to_end=True, reason="asked to end before the trainer started")
    code = trainer.returncode
    return Outcome(
        exit_code=128 - code if code < 0 else code,
        asked_to_end=asked,
        leftovers=_leftovers(head.pid, plan.grace),
        seconds=round(time.monotonic() - started, 1),
    )


def _start_ray(plan: Plan) -> "tuple[subprocess.Popen[bytes], str]":
    """Start Ray's head, wait until it answers; gives it and its address. Raises RuntimeError with its log's end."""
    log_path = plan.log.with_suffix(plan.log.suffix + ".ray")
    for _ in range(_RAY_TRIES):
        port = _free_port()
        plan.scratch.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            head = subprocess.Popen(
                [*plan.ray, f"--port={port}", f"--temp-dir={plan.scratch}", "--block"],
                env=plan.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + 60
        while head.poll() is None and time.monotonic() < deadline:
            # a head that cannot start its parts may exit 0, or not at all: what counts is its node manager
            if b"Ray runtime started" in log_path.read_bytes() and _listens(port):
                return head, f"127.0.0.1:{port}"
            time.sleep(0.2)
        _kill(_descendants())
    end = " / ".join(log_path.read_text(errors="replace").splitlines()[-3:])
    raise RuntimeError(f"Ray did not start ({end})")


def _leftovers(head: int, grace: float) -> list[str]:
    """What of the run lives on ``grace`` seconds after the trainer, Ray's own processes apart."""
    deadline = time.monotonic() + grace
    while True:
        others = [process for process in _descendants() if process.pid != head]
        found = [name for process in others if (name := _name(process)) and not _is_ray(name)]
        if not found or time.monotonic() >= deadline:
            return sorted(found)
        time.sleep(0.2)


def _is_ray(name: str) -> bool:
    first = name.split()[0].rsplit("/")[-1]
    return first.startswith(_RAY_PROCESSES) or "/ray/" in name or " -m ray." in name


def _name(process: psutil.Process) -> str:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return ""
        return " ".join(process.cmdline())[:200] or process.name()
    except psutil.Error:
        return ""


def _descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _kill(processes: list[psutil.Process]) -> None:
    """TERM for all, and after two seconds KILL, again until none comes after."""
    for process in processes:
        _signal(process, signal.SIGTERM)
    psutil.wait_procs(processes, timeout=2)
    for _ in range(10):
        alive = [process for process in _descendants() if _name(process)]
        if not alive:
            break
        for process in alive:
            _signal(process, signal.SIGKILL)
        psutil.wait_procs(alive, timeout=1)
    while True:  # those we adopted wait to be taken note of
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                return
        except ChildProcessError:
            return


def _signal(process: psutil.Process, number: int) -> None:
    with suppress(psutil.Error):
        process.send_signal(number)


def _wait(process: "subprocess.Popen[bytes]", seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    sys.exit(main())
