"""The page that shows both engines side by side."""

from pathlib import Path

from leonardo.evaluation.verdict import interval_points, percent, points
from leonardo.files import write_atomic
from leonardo.report.jinja import render
from leonardo.stages.engines import Engines

ROWS = {
    "updates": "updates",
    "nonzero_updates": "updates that moved weights",
    "signal_share": "groups with signal",
    "infrastructure_failures": "infrastructure failures",
    "parsed_action_share": "turns with a valid tool call",
    "mask_fraction_max": "tokens masked by the trust region, largest of a step",
    "logprob_difference": "log-probabilities, engine against learner, mean of the worst step",
    "weights_agree": "rollout engine held the learner's weights",
    "reward_first": "reward, first step",
    "reward_last": "reward, last step",
}


def render_engines(engines: Engines, page: Path) -> Path:
    """Write the page. Returns its path."""
    filters = {"percent": percent, "points": points, "interval_points": interval_points, "shown": shown}
    write_atomic(page, render("engines.html.j2", filters, engines=engines, rows=ROWS))
    return page


def shown(value: object) -> str:
    """A figure in a table."""
    if value is None:
        return "not measured"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
