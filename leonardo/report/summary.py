"""The comparison as a table in the terminal, in few figures, so that it fits 80 columns."""

from rich.console import Console

from leonardo.evaluation.records import Comparison, Ends, FamilyComparison
from leonardo.tables import Table


def print_summary(comparison: Comparison, console: Console) -> None:
    """Print base, trained and their paired difference with its 95 % interval, by family and over all tasks."""
    title = r"Base versus trained; paired difference in points \[95 % interval]"
    table = Table(title=title, title_justify="left")
    table.add_column("family")
    for name in ("tasks", "base", "trained", "difference"):
        table.add_column(name, justify="right")
    for family in comparison.families:
        table.add_row(*_row(family.family, family))
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


def _row(name: str, sides: Comparison | FamilyComparison) -> list[str]:
    difference = sides.difference
    return [
        name,
        str(difference.pairs),
        _rate(sides.base.value),
        _rate(sides.trained.value),
        f"{_points(difference.value)} {_ends(difference.interval)}".strip(),
    ]


def _rate(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:.1f} %"


def _points(value: float | None) -> str:
    return "none" if value is None else f"{100 * value:+.1f}"


def _ends(interval: Ends) -> str:
    # brackets open markup in rich unless escaped
    return "" if interval is None else rf"\[{_points(interval[0])} to {_points(interval[1])}]"
