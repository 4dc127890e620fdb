"""Tables of which nothing is cut, on a narrow terminal, in a pipe or in a job's log."""

import os
import sys
from typing import Any

import rich.table
from rich.console import Console

_WIDE = 160
"""Columns where nobody looks through a window; rich would take 80."""


class Table(rich.table.Table):
    """A table that folds what does not fit; rich's own cuts it."""

    def add_column(self, *arguments: Any, **options: Any) -> None:
        """As rich's."""
        super().add_column(*arguments, **{"overflow": "fold", **options})


def open_console() -> Console:
    """Standard output: as wide as the terminal, or as ``COLUMNS`` says, or wide."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if known else _WIDE)
