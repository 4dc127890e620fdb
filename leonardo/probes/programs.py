"""Programs that probes ask, held to a time with all that they start."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

_MOST_WORDS = 200


@dataclass(frozen=True)
class Said:
    """How a program ended.

    Attributes:
        well: it was there, and ended with 0 in time.
        output: what it printed, without spaces around it.
        words: where it did not end well, why, in a line.
    """

    well: bool
    output: str = ""
    words: str = ""


def run(*command: str, seconds: float = 20.0, environment: Mapping[str, str] | None = None) -> Said:
    """Run a program; after ``seconds`` it and all that it has started are ended."""
    text = partial(tempfile.TemporaryFile, "w+", errors="replace")  # no pipe: what lives on would hold it open
    with text() as output, text() as errors:
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            return Said(False, "", f"{command[0]}: {error.strerror}")
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        errors.seek(0)
        printed, said = output.read().strip(), errors.read().splitlines()
    if code == 0:
        return Said(True, printed)
    if code is None:
        return Said(False, printed, f"no answer within {seconds:g} s")
    lines = [line.strip() for line in said if line.strip() and "dmesg(1)" not in line]  # util-linux's general advice
    last = lines[-1] if lines else f"exit code {code}"
    return Said(False, printed, last[:_MOST_WORDS])
