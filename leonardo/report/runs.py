"""The page that compares two runs: what both show, in which pins they differ, and whether their policies compare."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leonardo.errors import InputError
from leonardo.evaluation import Comparison, compare
from leonardo.files import flat, write_atomic
from leonardo.report.jinja import render
from leonardo.report.run import Run, read_run
from leonardo.report.values import FILTERS

NOT_SETTINGS = ("config", "overlay", "assets", "stage")
"""Pins that digest others or name the run: where they differ, that says little by itself."""


@dataclass(frozen=True)
class Two:
    """Two runs beside each other.

    Attributes:
        folders, runs: of both.
        between: the second's trained policy against the first's; None where they do not compare, ``why_not`` says why.
        different, same: pins by dotted name, with both values or one.
        criteria: figure -> (threshold, value and verdict of each).
    """

    folders: tuple[Path, Path]
    runs: tuple[Run, Run]
    between: Comparison | None
    why_not: str
    different: dict[str, tuple[Any, Any]]
    same: dict[str, Any]
    criteria: list[dict[str, Any]]

    @property
    def stains(self) -> list[str]:
        """Of both, each once."""
        return list(dict.fromkeys(stain for run in self.runs for stain in run.facts.stains))


def render_two(first: Path, second: Path, page: Path) -> Path:
    """Write the page. Returns its path. Raises InputError where a folder holds no run."""
    write_atomic(page, render("runs.html.j2", FILTERS, two=put_together(first, second)))
    return page


def put_together(first: Path, second: Path) -> Two:
    """Read both runs and compare them, as far as they compare."""
    runs = (read_run(first), read_run(second))
    between, why_not = _between(*runs)
    pins = [flat(run.facts.pins) for run in runs]
    names = [*pins[0], *(name for name in pins[1] if name not in pins[0])]
    different = {
        name: (pins[0].get(name), pins[1].get(name)) for name in names if pins[0].get(name) != pins[1].get(name)
    }
    ordered = sorted(different, key=lambda name: name in NOT_SETTINGS)
    same = {name: pins[0][name] for name in names if name not in different}
    return Two(
        (first, second), runs, between, why_not, {name: different[name] for name in ordered}, same, _criteria(*runs)
    )


def _between(first: Run, second: Run) -> tuple[Comparison | None, str]:
    if first.trained is None or second.trained is None:
        return None, "one of them has no evaluation of its trained policy"
    try:
        return compare(first.trained, second.trained), ""
    except InputError as error:
        return None, error.what.removeprefix("base and trained cannot be compared: ")


def _criteria(first: Run, second: Run) -> list[dict[str, Any]]:
    sides = [{each.figure: each for each in run.facts.criteria} for run in (first, second)]
    names = [*sides[0], *(name for name in sides[1] if name not in sides[0])]
    return [{"figure": name, "sides": [side.get(name) for side in sides]} for name in names]
