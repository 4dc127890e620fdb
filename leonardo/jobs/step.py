"""The main step of a job: runs the trainer, asks it to end when the job is told to, and notes how it ended.

What runs around a trainer (srun, Ray) has exit codes of its own; the note is what the job goes by. Usage::

    python -m leonardo.jobs.step run STOP ENDED [--watch STEPS FIRST LATER] -- COMMAND...
    python -m leonardo.jobs.step ended ENDED
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from leonardo.errors import InputError
from leonardo.files import read_json, write_json

_LOOK = 0.5
_PATIENCE = 60.0
"""Seconds that a command which stalled has to end after TERM."""

_SET_PDEATHSIG = 1  # prctl(2)


class Watch:
    """Whether a trainer goes on: its file of step records has to grow.

    Args:
        steps: that file.
        first, later: seconds that it may take for the first record of this start, and for each one after it.
    """

    def __init__(self, steps: Path, first: float, later: float) -> None:
        self._steps, self._first, self._later = steps, first, later
        self._seen, self._since, self._grown = self._size(), time.monotonic(), False

    def stalled(self) -> str:
        """What did not come, in words; "" while there is hope."""
        if (size := self._size()) != self._seen:
            self._seen, self._since, self._grown = size, time.monotonic(), True
        patience = self._later if self._grown else self._first
        if time.monotonic() - self._since <= patience:
            return ""
        return f"no {'further' if self._grown else 'first'} step within {patience:g} s"

    def _size(self) -> int:
        return self._steps.stat().st_size if self._steps.exists() else 0


def run(stop: Path, ended: Path, command: Sequence[str], watch: Watch | None = None) -> int:
    """Run ``command``; TERM to it once the file ``stop`` is there (node-local, made by the job's script).

    Writes ``ended``: exit code (128+n for signal n; 3 where it stalled), whether it was asked to end, seconds, which
    job and restart.
    """
    started = time.monotonic()
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"job: {command[0]} cannot be started ({error.strerror})", file=sys.stderr)
        return _note(ended, 3, False, 0.0)
    asked = False

    def ask(number: int, frame: object) -> None:
        nonlocal asked
        asked = True
        child.terminate()

    signal.signal(signal.SIGTERM, ask)
    while child.poll() is None:
        if not asked and stop.exists():
            ask(signal.SIGTERM, None)
        if not asked and watch is not None and (stalled := watch.stalled()):
            print(f"job: {stalled}: the trainer is ended", file=sys.stderr, flush=True)
            _end(child)
            return _note(ended, 3, False, time.monotonic() - started, stalled)
        try:
            child.wait(_LOOK)
        except subprocess.TimeoutExpired:
            continue
    code = child.returncode
    return _note(ended, 128 - code if code < 0 else code, asked, time.monotonic() - started)


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def code_of(ended: Path) -> int | None:
    """The exit code noted by this very start of this job; None where it noted none."""
    try:
        note = read_json(ended)
        return int(note["exit_code"]) if [note["job"], note["restart"]] == _this_start() else None
    except (OSError, InputError, KeyError, TypeError, ValueError):
        return None


def _note(ended: Path, code: int, asked: bool, seconds: float, stalled: str = "") -> int:
    job, restart = _this_start()
    note = {"exit_code": code, "asked_to_end": asked, "seconds": round(seconds, 1), "job": job, "restart": restart}
    write_json(ended, note | ({"stalled": stalled} if stalled else {}))
    return code


def _this_start() -> list[str]:
    return [os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "0")]


def main(arguments: Sequence[str]) -> int:
    """Entry point."""
    match list(arguments):
        case ["run", stop, ended, "--", *command] if command:
            return run(Path(stop), Path(ended), command)
        case ["run", stop, ended, "--watch", steps, first, later, "--", *command] if command:
            return run(Path(stop), Path(ended), command, Watch(Path(steps), float(first), float(later)))
        case ["ended", ended]:
            code = code_of(Path(ended))
            if code is not None:
                print(code)
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
