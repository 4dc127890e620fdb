"""The main step of a job: runs the trainer, asks it to end when the job is told to, and notes how it ended.

What runs around a trainer (srun, Ray) has exit codes of its own; the note is what the job goes by.
"""

import argparse
import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from leonardo.errors import InputError
from leonardo.files import read_json, write_json
from leonardo.hooks.stopping import STOP

_LOOK = 0.5
_PATIENCE = 60.0
"""Seconds that a command has to end after TERM, before KILL."""

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
        try:
            return self._steps.stat().st_size
        except OSError:
            return 0


def run(stop: Path, ended: Path, command: Sequence[str], watch: Watch | None = None, patience: float = 0.0) -> int:
    """Run ``command``, and end it once it is asked to: by the file ``stop`` (node-local, made by the job's script).

    Where the file says ``TERM``, or this process gets that signal, the command gets it at once; else only where it has
    not ended by itself ``patience`` seconds later. A command that is given such time finds the file in ``STOP``. One
    that TERM does not end is killed, as it is when this process dies; what it started ends with the job's step.

    Writes ``ended``: exit code (128+n for signal n; 3 where it stalled), whether it was asked to end, seconds, which
    job and restart.
    """
    started, myself = time.monotonic(), os.getpid()
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    def end_with_step() -> None:
        libc.prctl(_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != myself:  # it died before
            os._exit(1)

    if stop.exists():
        patience = 0.0  # there is nothing to save yet
    environment = {**os.environ, STOP: str(stop)} if patience else None
    terminated = False

    def terminate(number: int, frame: object) -> None:
        nonlocal terminated
        terminated = True

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGUSR1, lambda number, frame: None)  # the file says that; the command inherits no handler
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, preexec_fn=end_with_step)
    except OSError as error:
        print(f"job: {command[0]} cannot be started ({error.strerror})", file=sys.stderr)
        return _note(ended, 3, False, 0.0)
    asked_at = math.inf
    while child.poll() is None:
        if terminated or stop.exists():
            asked_at = min(asked_at, time.monotonic())
        if terminated or _says_term(stop) or time.monotonic() >= asked_at + patience:
            print(f"job: told to stop {time.monotonic() - asked_at:.0f} s ago: TERM", file=sys.stderr, flush=True)
            _end(child)
            break
        if asked_at == math.inf and watch is not None and (stalled := watch.stalled()):
            print(f"job: {stalled}: the trainer is ended", file=sys.stderr, flush=True)
            _end(child)
            return _note(ended, 3, False, time.monotonic() - started, stalled)
        try:
            child.wait(_LOOK)
        except subprocess.TimeoutExpired:
            continue
    code = child.returncode
    asked = terminated or stop.exists()
    return _note(ended, 128 - code if code < 0 else code, asked, time.monotonic() - started)


def _says_term(stop: Path) -> bool:
    try:
        return stop.read_bytes().strip() == b"TERM"
    except OSError:
        return False


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        print(f"job: the trainer has not ended {_PATIENCE:g} s after TERM: KILL", file=sys.stderr, flush=True)
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
    try:
        write_json(ended, note | ({"stalled": stalled} if stalled else {}))
    except OSError as error:
        print(f"job: the trainer ended with {code}, but {ended} cannot be written ({error.strerror})", file=sys.stderr)
    return code


def _this_start() -> list[str]:
    return [os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "0")]


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not seconds >= 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def main(arguments: Sequence[str]) -> int:
    """Entry point."""
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(prog="python -m leonardo.jobs.step")
    parsers = parser.add_subparsers(dest="what", required=True)
    running = parsers.add_parser("run", usage="%(prog)s STOP ENDED [options] -- COMMAND...")
    running.add_argument("stop", type=Path)
    running.add_argument("ended", type=Path)
    running.add_argument("--watch", nargs=3, metavar=("STEPS", "FIRST", "LATER"), help="see the class Watch")
    running.add_argument(
        "--patience", type=_seconds, default=0.0, help="seconds before TERM, where STOP does not say TERM"
    )
    parsers.add_parser("ended").add_argument("ended", type=Path)
    given, command = parser.parse_args(words[:at]), words[at + 1 :]
    if given.what == "ended":
        if (code := code_of(given.ended)) is not None:
            print(code)
        return 0
    if not command:
        running.error("no command")
    try:
        watch = Watch(Path(given.watch[0]), *map(_seconds, given.watch[1:])) if given.watch else None
    except argparse.ArgumentTypeError as error:
        running.error(f"--watch: {error}")
    return run(given.stop, given.ended, command, watch, given.patience)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
