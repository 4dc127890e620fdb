"""The page of the whole ladder: what was proven, with which pins, what was not; then every entry of the ledger."""

from collections.abc import Sequence
from pathlib import Path

from leonardo.evidence import Check, Evidence
from leonardo.files import flat, write_atomic
from leonardo.report.jinja import render
from leonardo.report.values import FILTERS
from leonardo.stages.asked import LIMITS
from leonardo.stages.climb import Rung


def render_ladder(rungs: Sequence[Rung], entries: Sequence[Evidence], check: Check, page: Path) -> Path:
    """Write the page. Returns its path.

    Args:
        rungs: lowest first, for the pins that are asked about.
        entries: of the ledger, oldest first.
        check: of the ledger and its records.
    """
    passed = [rung for rung in rungs if rung.state == "passed"]
    top = passed[-1] if passed else None
    text = render(
        "ladder.html.j2",
        FILTERS,
        rungs=rungs,
        passed=passed,
        rest=[rung for rung in rungs if rung.state != "passed"],
        top=top,
        pins=flat(top.entry.pins) if top and top.entry else {},
        limits=[LIMITS[engine]] if top and top.entry and (engine := top.entry.pins.get("engine")) in LIMITS else [],
        stains=list(dict.fromkeys(stain for rung in rungs if rung.entry for stain in rung.entry.stains)),
        entries=list(enumerate(entries, 1)),
        check=check,
    )
    write_atomic(page, text)
    return page
