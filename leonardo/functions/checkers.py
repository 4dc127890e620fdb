"""The worker processes that have ``bfcl-eval``: how they are started, asked, and ended."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from importlib.metadata import distributions
from pathlib import Path
from threading import Lock, Timer
from typing import Any

from leonardo.errors import InfrastructureError, InputError
from leonardo.files import sha256_file

PACKAGE_VARIABLE = "LEONARDO_BFCL"
_FOLDER = Path(__file__).parent.parent.parent / ".tools/bfcl"
_WORKER = Path(__file__).with_name("worker.py")
_TIMEOUT = 60.0


def package_folder() -> Path:
    """Where ``bfcl-eval`` is installed: ``LEONARDO_BFCL``, or the project's ``.tools/bfcl``. Raises InputError."""
    folder = Path(os.environ.get(PACKAGE_VARIABLE) or _FOLDER).absolute()
    if not (folder / "bfcl_eval").is_dir():
        raise InputError(
            f"bfcl-eval is not installed in {folder}", f"make bfcl, or name its folder: {PACKAGE_VARIABLE}"
        )
    return folder


def package_pins() -> dict[str, str]:
    """What the installed package is: its version, and the digest of the lock. Raises InputError."""
    folder = package_folder()
    versions = {entry.name.replace("_", "-"): entry.version for entry in distributions(path=[str(folder)])}
    return {"bfcl-eval": versions.get("bfcl-eval", "unknown"), "lock": sha256_file(folder / "lock.txt")}


class CheckerError(Exception):
    """The package raised on what it was asked; the message is its own."""


class CheckerTimeout(Exception):
    """An answer took too long. The worker was ended, and with it what it knew."""


class Checkers:
    """One worker; it starts with the first request. May be asked by many threads, which take turns.

    Args:
        timeout: seconds that an answer may take.
    """

    def __init__(self, timeout: float = _TIMEOUT) -> None:
        self._timeout = timeout
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None
        self._scratch = Path()

    def ask(self, do: str, **request: Any) -> Any:
        """The worker's answer. Raises CheckerError, CheckerTimeout, InfrastructureError where the worker died."""
        with self._lock:
            process = self._process = self._process or self._start()
            assert process.stdin is not None and process.stdout is not None  # both are pipes
            late: list[bool] = []
            timer = Timer(self._timeout, lambda: (late.append(True), process.kill()))
            timer.start()
            try:
                process.stdin.write(json.dumps({"do": do, **request}) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
            except BrokenPipeError:
                line = ""
            finally:
                timer.cancel()
            if not line:
                self._end()
                if late:
                    raise CheckerTimeout(f"no answer to {do} in {self._timeout:.0f} s")
                raise InfrastructureError(
                    f"the process that has bfcl-eval ended at {do} (exit code {process.returncode})",
                    "See whether memory ran out; `leonardo functions check` tries the package",
                )
        answer = json.loads(line)
        if "error" in answer:
            raise CheckerError(answer["error"])
        return answer["value"]

    def close(self) -> None:
        """End the worker. A later request starts another."""
        with self._lock:
            self._end()

    def __enter__(self) -> "Checkers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> "subprocess.Popen[str]":
        folder = package_folder()
        self._scratch = Path(tempfile.gettempdir()) / f"leonardo-bfcl-{uuid.uuid4().hex}"
        # no variable of ours reaches it: not a proxy, not a token
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_WORKER), str(folder), str(self._scratch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={"LANG": "C.UTF-8"},
            cwd="/",
            start_new_session=True,
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()  # type: ignore[union-attr]
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()  # type: ignore[union-attr]
        shutil.rmtree(self._scratch, ignore_errors=True)
