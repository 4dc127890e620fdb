"""What the commands of all gates share: which rows, and the entry in the ledger."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from leonardo import evidence
from leonardo.assets.progress import say
from leonardo.assets.selection import read_chosen
from leonardo.errors import InputError
from leonardo.files import write_verdict
from leonardo.options import RowOptions
from leonardo.tasks.task import Task


@dataclass(frozen=True)
class Selection:
    """Rows of a file or folder: all of them, or those that are chosen."""

    rows: Path
    which: RowOptions = field(default_factory=RowOptions)
    shard: str = ""

    def tasks(self) -> list[Task]:
        """The tasks, one at least. Raises InputError."""
        found = read_chosen(self.rows, self.which, self.shard)
        if not found:
            raise InputError(f"{self.rows}: the selection leaves no row", "Select others")
        return found


def record_gate(
    name: str,
    says: str,
    asked: Mapping[str, int],
    figures: dict[str, Any],
    pins: dict[str, Any],
    *,
    site: str,
    runs: Path,
    console: Console,
) -> None:
    """Keep a gate's verdict below ``runs`` and enter it into the ledger there.

    Args:
        says: what was found, a sentence without its end.
        asked: counts that have to be 0 for a pass, by what they count.
        figures, pins: of the verdict.
    """
    ok = not any(asked.values())
    verdict = runs / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%S%f}" / f"{name}.json"
    write_verdict(verdict, ok, figures, pins)
    entry = evidence.Evidence(
        name=name,
        kind="gate",
        verdict="pass" if ok else "fail",
        says=f"{name} {'passes' if ok else 'fails'}: {says}.",
        site=site,
        figures={figure: value for figure, value in figures.items() if isinstance(value, int)},
        criteria=tuple(
            evidence.Judged(figure=what, value=count, threshold="is 0", ok=not count) for what, count in asked.items()
        ),
        pins=pins,
        records=evidence.record_files(runs, [verdict]),
    )
    evidence.append(runs / evidence.LEDGER, entry, lambda told: say(console, told))
