"""A stage's verdict in words, and its criteria for the ledger and ``out/<stage>.json``."""

from collections.abc import Mapping, Sequence
from typing import Any

from leonardo.evaluation import Comparison
from leonardo.evaluation.verdict import interval_points, points
from leonardo.evidence import Judged
from leonardo.gates.criteria import Finding, apply
from leonardo.stages.definition import Stage, load_stage


def judged(findings: Sequence[Finding]) -> tuple[Judged, ...]:
    """The criteria with value, threshold in words and verdict."""
    return tuple(
        Judged(figure=each.criterion.figure, value=each.value, threshold=each.criterion.asks(), ok=each.ok)
        for each in findings
    )


def sentence_of(
    stage: Stage,
    findings: Sequence[Finding],
    figures: Mapping[str, Any],
    comparison: Comparison | None,
    reason: str = "",
) -> str:
    """The verdict in words: what a pass is evidence for, or what failed and why.

    Args:
        reason: why the trainer did not end by itself, ``""`` where it did.
    """
    failed = [finding.sentence for finding in findings if not finding.ok]
    ended = f" Training ended early: {reason}." if reason else ""
    if failed:
        return f"{stage.name} fails: {'; '.join(failed)}.{_direction(figures, comparison)}{ended}"
    return f"{stage.name} passes: {stage.shows}.{_plumbing(stage, figures)}{_direction(figures, comparison)}{ended}"


def _plumbing(stage: Stage, figures: Mapping[str, Any]) -> str:
    """Whether it is plumbing evidence only, by the criteria of the signal gate."""
    if not stage.signal:
        return ""
    lacking = [finding for finding in apply(load_stage(stage.signal).criteria, figures) if not finding.ok]
    if not lacking:
        return f" The criteria of {stage.signal} hold as well."
    first = lacking[0].sentence.removesuffix(f": {lacking[0].criterion.reason}")
    others = ", ".join(finding.criterion.figure for finding in lacking[1:])
    more = f"; nor is met: {others}" if others else ""
    return f" Plumbing evidence only: of the criteria of {stage.signal}, {first}{more}."


def _direction(figures: Mapping[str, Any], comparison: Comparison | None) -> str:
    if "direction" not in figures or comparison is None:
        return ""
    difference = comparison.difference
    return (
        f" Direction, by the rule in the stage file: {figures['direction']} ({points(difference.value)} points, "
        f"{interval_points(difference.interval)}, {difference.pairs} held-out tasks)."
    )
