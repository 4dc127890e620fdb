"""A trainer that ends: with a true exit code, within its time, and with nothing of it left behind.

Exit codes: 0 the run ended well, 2 bad input, 3 the machine failed, 143 asked to end by SIGTERM, 1 anything else.
"""

import ctypes
import faulthandler
import functools
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn, ParamSpec, TypeVar

from leonardo.errors import LeonardoError

_SET_PDEATHSIG = 1  # prctl(2)

TERM_SECONDS = 20.0
"""From SIGTERM to the end. Slurm kills 30 s after it."""

CLEANUP_SECONDS = 120.0
"""For upstream's own clean-up, which waits for threads that may never end."""

EXIT_SECONDS = 300.0
"""For what Python does at the end: threads, and what was registered for then (such as uploading records)."""

ON_SIGTERM = 128 + signal.SIGTERM

_asked_to_end = threading.Event()
"""Set when this process has got SIGTERM."""

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")
_R = TypeVar("_R")


def leave_nothing(main: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorator of upstream's ``main``: however it ends, the process ends after it, with the code that is true."""

    @functools.wraps(main)
    def ending(*arguments: _P.args, **options: _P.kwargs) -> _R:
        code = 0
        try:
            with one_line():
                return main(*arguments, **options)
        except BaseException as error:
            code = exit_code(error)
            if _asked_to_end.is_set():
                raise SystemExit(code) from error  # Ray makes another of the one raised while it waits
            raise
        finally:
            end_within(EXIT_SECONDS, code)
            _end_ray()

    return ending


@contextmanager
def one_line() -> Iterator[None]:
    """An error that is meant for a person is shown as one line, and ends the process with its exit code."""
    try:
        yield
    except LeonardoError as error:
        print(f"leonardo: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from error


def clean_up_in_time(cleanup: Callable[_P, None]) -> Callable[_P, None]:
    """Decorator of upstream's clean-up: it takes no longer than it may, and what fails in it is told, not raised.

    So it neither hides the error that ended the run, nor makes a failure of a run that ended well.
    """

    @functools.wraps(cleanup)
    def bounded(*arguments: _P.args, **options: _P.kwargs) -> None:
        limit = end_within(CLEANUP_SECONDS, exit_code(sys.exc_info()[1]))
        try:
            cleanup(*arguments, **options)
        except Exception:  # noqa: BLE001 - whatever it is, the run's own end counts
            _log.warning("The clean-up did not go to its end", exc_info=True)
        finally:
            limit.cancel()

    return bounded


def end_on_sigterm() -> None:
    """From now on SIGTERM ends this process in order, or by force when that takes too long.

    To be called after ``ray.init``, which sets a handler of its own: one that ends with code 15, if it is not held up.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, frame: FrameType | None) -> None:
    end_as_asked()


def end_as_asked() -> NoReturn:
    """End this process in order, as on SIGTERM, or by force when that takes too long. In the main thread."""
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # once is enough
    _asked_to_end.set()
    end_within(TERM_SECONDS, ON_SIGTERM)
    raise SystemExit(ON_SIGTERM)


def exit_code(error: BaseException | None) -> int:
    """The exit code of a process that ends with ``error``."""
    if error is None:
        return 0
    if _asked_to_end.is_set():
        return ON_SIGTERM
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    return error.exit_code if isinstance(error, LeonardoError) else 1


def end_within(seconds: float, code: int) -> threading.Timer:
    """End this process with ``code``, and its children, unless it has ended or the timer is cancelled by then."""
    timer = threading.Timer(seconds, _end_now, (seconds, code))
    timer.daemon = True
    timer.start()
    return timer


def _end_now(seconds: float, code: int) -> None:
    print(f"leonardo: not ended {seconds:g} s after it was to end; by force now, code {code}", file=sys.stderr)
    faulthandler.dump_traceback(sys.stderr)
    _kill_children()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _kill_children() -> None:
    import psutil

    for _ in range(10):  # one that is killed may just have started another
        children = psutil.Process().children(recursive=True)
        for child in children:
            try:
                child.kill()
            except psutil.Error:
                continue
        if not psutil.wait_procs(children, timeout=1)[0]:
            return


def _end_ray() -> None:
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        with suppress(Exception):  # the run has ended; how, is known
            ray.shutdown()


def die_with_parent() -> None:
    """Have this process, one that multiprocessing started, killed when the process that started it ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid != os.getppid():  # it ended before
        os._exit(1)
