"""The main step of a job: runs the trainer, asks it to end when the job is told to, and notes how it ended.

What runs around a trainer (srun, Ray) has exit codes of its own; the note is what the job goes by. Usage::

    python -m leonardo.jobs.step run STOP ENDED -- COMMAND...
    python -m leonardo.jobs.step ended ENDED
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from leonardo.files import write_json

_LOOK = 0.5
_SET_PDEATHSIG = 1  # prctl(2)


def run(stop: Path, ended: Path, command: Sequence[str]) -> int:
    """Run ``command``; TERM to it once the file ``stop`` is there (node-local, made by the job's script).

    Writes ``ended``: exit code (128+n for signal n), whether it was asked to end, seconds, which job and restart.
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
        try:
            child.wait(_LOOK)
        except subprocess.TimeoutExpired:
            continue
    code = child.returncode
    return _note(ended, 128 - code if code < 0 else code, asked, time.monotonic() - started)


def code_of(ended: Path) -> int | None:
    """The exit code noted by this very start of this job; None where it noted none."""
    try:
        note = json.loads(ended.read_bytes())
    except (OSError, ValueError):
        return None
    return int(note["exit_code"]) if [note["job"], note["restart"]] == _this_start() else None


def _note(ended: Path, code: int, asked: bool, seconds: float) -> int:
    job, restart = _this_start()
    note = {"exit_code": code, "asked_to_end": asked, "seconds": round(seconds, 1), "job": job, "restart": restart}
    write_json(ended, note)
    return code


def _this_start() -> list[str]:
    return [os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "0")]


def main(arguments: Sequence[str]) -> int:
    """Entry point."""
    match list(arguments):
        case ["run", stop, ended, "--", *command] if command:
            return run(Path(stop), Path(ended), command)
        case ["ended", ended]:
            code = code_of(Path(ended))
            if code is not None:
                print(code)
            return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
