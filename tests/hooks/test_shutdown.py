"""How a trainer ends: real processes, with limits that are short."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from leonardo.errors import InfrastructureError, InputError
from leonardo.hooks.shutdown import exit_code
from tests.processes import running

PROLOGUE = """
import os, signal, sys, threading, time
from leonardo.errors import InputError
from leonardo.hooks import shutdown
shutdown.TERM_SECONDS, shutdown.CLEANUP_SECONDS, shutdown.EXIT_SECONDS = 1.0, 1.0, 1.0

@shutdown.clean_up_in_time
def cleanup(work):
    work()

@shutdown.leave_nothing
def main(work, last=lambda: None):
    try:
        work()
    finally:
        cleanup(last)

def fail(text="the cause"):
    raise RuntimeError(text)

def sleep():
    time.sleep(90)

def hang():
    threading.Thread(target=sleep).start()

"""


def run(body: str) -> tuple[int, str, float]:
    """Exit code, what was said on stderr, and seconds, of a trainer that is ``body``."""
    started = time.monotonic()
    program = PROLOGUE + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stderr, time.monotonic() - started


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("main(lambda: None)", 0, ""),
        ("main(lambda: None, fail)", 0, "the cause"),
        ("main(fail)", 1, "RuntimeError: the cause"),
        ("main(fail, lambda: fail('the clean-up'))", 1, "RuntimeError: the cause"),
        ("main(lambda: sys.exit(7))", 7, ""),
    ],
    ids=["well", "well, clean-up fails", "error", "error, clean-up fails", "exit"],
)
def test_exit_code_is_the_runs(body: str, code: int, said: str) -> None:
    ended, stderr, _ = run(body)
    assert (ended, said in stderr) == (code, True)
    if said == "RuntimeError: the cause":
        assert stderr.rstrip().endswith(said)  # the last thing said is why the run ended


def test_error_for_a_person_is_one_line() -> None:
    code, stderr, _ = run("def bad(): raise InputError('no such model', 'Name another')\nmain(bad)")
    assert (code, stderr) == (2, "leonardo: no such model. Name another\n")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("main(lambda: None, sleep)", 0),
        ("main(fail, sleep)", 1),
        ("main(hang)", 0),
        ("main(lambda: (hang(), fail()))", 1),
    ],
    ids=["clean-up", "clean-up after an error", "thread", "thread after an error"],
)
def test_what_does_not_end_is_ended(body: str, code: int) -> None:
    ended, stderr, seconds = run(body)
    assert ended == code and seconds < 45
    assert "by force now" in stderr and "most recent call first" in stderr  # and where it was


def test_long_end_after_a_clean_up_in_time_is_let_be() -> None:
    ended, stderr, _ = run("""
        shutdown.EXIT_SECONDS = 60.0
        main(lambda: None)
        time.sleep(1.5)
    """)
    assert (ended, stderr) == (0, "")


def test_children_are_ended_by_force_too(tmp_path: Path) -> None:
    ended, _, _ = run(f"""
        import subprocess
        child = subprocess.Popen(["sleep", "90"])
        open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
        main(hang)
    """)
    assert ended == 0
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


TERM = """
shutdown.end_on_sigterm()
def terminated():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(90)
"""


def test_sigterm_ends_in_order() -> None:
    ended, stderr, seconds = run(TERM + "main(terminated, lambda: print('cleaned', file=sys.stderr))")
    assert (ended, stderr) == (143, "cleaned\n") and seconds < 45


def test_sigterm_that_another_makes_something_else_of() -> None:
    ended, stderr, _ = run(
        TERM
        + """
def other():
    try:
        terminated()
    except SystemExit:
        raise SystemExit(1)  # as Ray does while it waits
main(other)
"""
    )
    assert (ended, stderr) == (143, "")


def test_sigterm_that_is_swallowed_ends_all_the_same() -> None:
    ended, stderr, seconds = run(
        TERM
        + """
def deaf():
    try:
        terminated()
    except BaseException:
        pass
    time.sleep(90)
main(deaf)
"""
    )
    assert ended == 143 and "by force now" in stderr and seconds < 45


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, 0),
        (ValueError(), 1),
        (SystemExit(), 0),
        (SystemExit(5), 5),
        (SystemExit("text"), 1),
        (KeyboardInterrupt(), 130),
        (InputError("x"), 2),
        (InfrastructureError("x"), 3),
    ],
)
def test_exit_codes(error: BaseException | None, code: int) -> None:
    assert exit_code(error) == code


PARENT = """
import multiprocessing, os, sys, time
from leonardo.hooks.shutdown import die_with_parent

def child(sender):
    die_with_parent()
    sender.send(os.getpid())
    time.sleep(90)

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(False)
    context.Process(target=child, args=(sender,)).start()
    print(receiver.recv(), flush=True)
    time.sleep(90)
"""


def test_engine_process_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "parent.py").write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with running([sys.executable, tmp_path / "parent.py"], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    deadline = time.monotonic() + 20
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
