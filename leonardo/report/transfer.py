"""The pages of the transfer study: of a run, and of the runs of several seeds side by side."""

from pathlib import Path

from leonardo.evaluation.verdict import interval_points, percent, points
from leonardo.files import write_atomic
from leonardo.report.engines import shown
from leonardo.report.jinja import render
from leonardo.stages.transfer import TransferOutcome
from leonardo.stages.transferfile import limits_of
from leonardo.stages.transferseeds import SeedsOutcome


def render_transfer(outcome: TransferOutcome) -> Path:
    """Write the page into the run's folder. Returns its path."""
    filters = {"percent": percent, "points": points, "interval_points": interval_points, "shown": shown}
    on_functions = [effect for effect in outcome.matrix.effects if effect.on == "functions"]
    categories = [family.family for family in on_functions[0].comparison.families] if on_functions else []
    page = outcome.run_folder / "index.html"
    write_atomic(
        page,
        render("transfer.html.j2", filters, outcome=outcome, categories=categories, limits=limits_of(outcome.stage)),
    )
    return page


def render_seeds(outcome: SeedsOutcome, page: Path) -> Path:
    """Write the page of a study over its seeds. Returns its path."""
    filters = {"percent": percent, "points": points, "interval_points": interval_points}
    write_atomic(page, render("transfer-seeds.html.j2", filters, outcome=outcome, limits=limits_of(outcome.stage)))
    return page
