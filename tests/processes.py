"""Processes that a test starts, which end with it."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any


@contextmanager
def running(command: Sequence[str | PathLike[str]], **options: Any) -> Iterator["subprocess.Popen[str]"]:
    """``subprocess.Popen`` in text mode; killed at the block's end, where Popen itself would wait for ever."""
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            yield process
        finally:
            process.kill()
