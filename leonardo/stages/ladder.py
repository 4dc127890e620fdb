"""The ladder: which stage follows which (the stage files say), and whether the ledger opens one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leonardo.errors import InputError
from leonardo.evidence import Evidence
from leonardo.evidence.audit import changed_records
from leonardo.gates.criteria import Criterion, apply
from leonardo.settings import LAUNCH
from leonardo.stages.definition import Model, Stage, load_stage
from leonardo.stages.pins import differences

GATES = "gates"
"""The lowest rung, which is no stage: the environment gates."""

SHOWN = 3
"""Differing pins that are named; the others are counted."""


@dataclass(frozen=True)
class Opening:
    """Whether a stage may begin.

    Attributes:
        open: it may.
        why: it may, or not, in a sentence.
        basis: the pass that opens it; None where it needs none or there is none.
        missing: nothing but a run of the stage before is missing: none with these pins is in the ledger.
    """

    open: bool
    why: str
    basis: Evidence | None = None
    missing: bool = False

    @property
    def stains(self) -> tuple[str, ...]:
        """What was forced in what this builds on."""
        return self.basis.stains if self.basis else ()


def opening(
    after: str,
    pins: Mapping[str, Any],
    entries: Sequence[Evidence],
    folder: Path,
    criteria: Sequence[Criterion] = (),
) -> Opening:
    """Whether the ledger opens a stage that comes ``after`` another.

    The last entry of that other with the same pins decides: a pass that a later run did not confirm is none.

    Args:
        pins: of the stage that wants to begin, as far as they are known.
        entries: of the ledger in ``folder``, oldest first.
        criteria: of that other as its file has them now; a pass by weaker ones is none.
    """
    if not after:
        return Opening(True, "it needs no evidence before it")
    candidates = [(number, entry) for number, entry in enumerate(entries, 1) if entry.name == after]
    if not candidates:
        return Opening(False, f"{after} has not been run here: the ledger has no entry of it", missing=True)
    same = [(number, entry) for number, entry in candidates if not list(differences(pins, entry.pins, after == GATES))]
    if not same:
        number, entry = next((each for each in reversed(candidates) if each[1].verdict == "pass"), candidates[-1])
        different = list(differences(pins, entry.pins, after == GATES))
        more = f"; and {len(different) - SHOWN} more" if len(different) > SHOWN else ""
        said = "; ".join(different[:SHOWN]) + more
        return Opening(False, f"{after} has no entry with these pins (entry {number}: {said})", missing=True)
    number, entry = same[-1]
    if entry.verdict != "pass":
        return Opening(False, f"{after} failed with these pins (entry {number}): {entry.says or 'see its figures'}")
    if unmet := [finding for finding in apply(criteria, entry.figures) if not finding.ok]:
        said = f"{after} passed by other criteria than its file has now (entry {number}): {unmet[0].sentence}"
        return Opening(False, said, missing=True)
    if changed := changed_records(entry, folder):
        return Opening(False, f"{after} is no evidence any more (entry {number}): its record {changed[0]} was changed")
    stained = ", which is STAINED" if entry.stains else ""
    return Opening(True, f"{after} passed with these pins (entry {number}){stained}", entry)


def name_below(name: str, after: str) -> str:
    """The file of the rung below a stage: beside the stage's own where that was given as a file, else the shipped."""
    beside = Path(name).with_name(f"{after}.yaml")
    return str(beside) if Path(name).suffix in (".yaml", ".yml") and beside.is_file() else after


def criteria_below(name: str, after: str, model: Model) -> tuple[Criterion, ...]:
    """What a pass of the rung below a stage asks for, with what ``model`` replaces in it."""
    if after in ("", GATES):
        return ()
    return load_stage(name_below(name, after)).with_model(model).criteria


def ladder() -> list[Stage]:
    """The stages of ``launch/stages`` that stand on the gates, each after the one it builds on.

    Raises:
        InputError: a stage builds on one that there is none of.
    """
    stages = [load_stage(path) for path in sorted((LAUNCH / "stages").glob("*.yaml"))]
    names = {GATES, *(stage.name for stage in stages)}
    for stage in stages:
        if stage.after not in names:
            raise InputError(f"stage {stage.name} comes after {stage.after}, which is not there", "Mend its `after`")
    ordered: list[Stage] = []
    below = [GATES]
    while below:
        above = [stage for stage in stages if stage.after in below and stage not in ordered]
        ordered += above
        below = [stage.name for stage in above]
    return ordered
