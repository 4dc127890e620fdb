"""The comparison as a table in the terminal."""

from rich.console import Console
from rich.table import Table

from leonardo.evaluation.records import Comparison, FamilyComparison, RateRecord
from leonardo.evaluation.verdict import percent, points


def print_summary(comparison: Comparison, console: Console) -> None:
    """Print base, trained and their paired difference with 95 % intervals, by family and over all tasks."""
    table = Table(title="Base versus trained, 95 % intervals", title_justify="left")
    table.add_column("family", no_wrap=True)
    for name in ("tasks", "base", "trained", "difference, points"):
        table.add_column(name, justify="right", no_wrap=True)
    for family in comparison.families:
        table.add_row(*_row(family.family, family, brief=True))
    table.add_section()
    table.add_row(*_row("all", comparison), style="bold")
    console.print(table)
    for name, side in (("base", comparison.base), ("trained", comparison.trained)):
        if side.excluded:
            console.print(
                f"{name}: {side.excluded} attempts failed for the infrastructure's reasons and are not counted"
            )
    if excluded := comparison.difference.excluded:
        console.print(f"not paired, without a valid attempt on both sides: {', '.join(excluded)}", soft_wrap=True)


def _row(name: str, sides: Comparison | FamilyComparison, brief: bool = False) -> list[str]:
    """``brief`` leaves the rates' intervals out: a family's few tasks make them wide, and a terminal is narrow."""
    difference = sides.difference
    ends = "" if difference.interval is None else " ({} to {})".format(*map(points, difference.interval))
    return [
        name,
        str(difference.pairs),
        percent(sides.base.value) if brief else _rate(sides.base),
        percent(sides.trained.value) if brief else _rate(sides.trained),
        f"{points(difference.value)}{ends}",
    ]


def _rate(rate: RateRecord) -> str:
    ends = "" if rate.interval is None else f" ({100 * rate.interval[0]:.0f} to {100 * rate.interval[1]:.0f})"
    return f"{percent(rate.value)}{ends}"
