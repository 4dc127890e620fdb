"""A stage's verdict in words, and where it is written: ``run.json``, ``out/<stage>.json``, the ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from leonardo import evidence
from leonardo.assets.progress import say
from leonardo.evaluation import Comparison, RunFacts
from leonardo.evaluation.verdict import interval_points, points
from leonardo.evidence import Judged
from leonardo.files import write_verdict
from leonardo.gates.criteria import Finding, apply
from leonardo.stages.definition import Stage, load_stage
from leonardo.stages.ladder import Opening
from leonardo.tables import Table

FACTS, STEPS = "run.json", "steps.jsonl"


@dataclass(frozen=True)
class Basis:
    """What a run stands on: what opened it, and in words why it was forced where nothing did."""

    opening: Opening
    forced: str

    @property
    def stains(self) -> tuple[str, ...]:
        """What was forced here or below."""
        return (*self.opening.stains, *filter(None, [self.forced]))


def show(findings: Sequence[Finding], console: Console) -> None:
    """Print the criteria as a table."""
    table = Table("figure", "value", "asked", "met")
    for finding in findings:
        value = finding.value
        shown = "not measured" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
        table.add_row(
            finding.criterion.figure, shown, finding.criterion.asks(), "yes" if finding.ok else "[red]no[/red]"
        )
    console.print(table)


def record(
    stage: Stage,
    facts: RunFacts,
    basis: Basis,
    findings: Sequence[Finding],
    sentence: str,
    figures: dict[str, Any],
    run_folder: Path,
    runs: Path,
    out_path: Path,
    console: Console,
    *,
    files: Sequence[str],
    undecided: bool = False,
) -> None:
    """Write what came of a stage: ``run.json``, the verdict, the entry of the ledger.

    Args:
        files: of the run's folder, which the entry names with their hashes.
        undecided: the run was ended from outside before there was anything to judge: it is ``open``, which is no
            pass, and no entry is made, so that what the ledger said of the stage before still stands.
    """
    ok = all(finding.ok for finding in findings) and not undecided
    verdict = "open" if undecided else "pass" if ok else "fail"
    criteria = judged(findings)
    stains = list(basis.stains)
    told = {"says": sentence, "criteria": [each.model_dump(mode="json") for each in criteria], "stains": stains}
    RunFacts.model_validate(facts.model_dump(mode="json") | told).write(run_folder / FACTS)
    by_name = {each.figure: {"value": each.value, "threshold": each.threshold, "ok": each.ok} for each in criteria}
    write_verdict(out_path, ok, figures, facts.pins, says=sentence, verdict=verdict, criteria=by_name, stains=stains)
    if undecided:
        return
    entry = evidence.Evidence(
        name=stage.name,
        kind="stage",
        verdict="pass" if ok else "fail",
        says=sentence,
        site=facts.site,
        figures=figures,
        criteria=criteria,
        pins=facts.pins,
        records=evidence.record_files(runs, [run_folder / name for name in files]),
        builds_on=basis.opening.basis.digest if basis.opening.basis else "",
        forced=basis.forced,
        stains=basis.stains,
    )
    evidence.append(runs / evidence.LEDGER, entry, lambda words: say(console, words))


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
