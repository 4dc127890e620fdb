"""What a job's stage stands on, by the ledger of its runs folder: asked before the queue, kept for the verdict.

A stage opens as in ``leonardo stage run``: on a pass of the rung below with the same pins, or by force with a reason.
In a chain the good end of a job before it opens it, and so does that of a queued job named with ``--after``.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leonardo import evidence
from leonardo.errors import InputError
from leonardo.evidence import Evidence
from leonardo.jobs.findings import Finding
from leonardo.jobs.folder import read_plan
from leonardo.stages.asked import Asked
from leonardo.stages.climb import opening_of
from leonardo.stages.ladder import GATES, Opening
from leonardo.stages.verdicts import Basis


@dataclass(frozen=True)
class Ground:
    """What opened a stage when its job was submitted.

    Attributes:
        why: in a sentence.
        basis: digest of the entry that did; "" where none did.
        waits_for: the stage whose job has to end well first and opens it then; "" for none.
        forced: why nothing opens it, and the reason that was given for running all the same; "" for not.
        open: one of these holds.
    """

    why: str = ""
    basis: str = ""
    waits_for: str = ""
    forced: str = ""
    open: bool = False

    def as_json(self) -> dict[str, Any]:
        """For the run's folder."""
        return asdict(self)


def ground_of(asked: Asked, runs: Path, before: Collection[str], force: str) -> Ground:
    """What a stage stands on.

    Args:
        asked: the stage, where and with what.
        runs: the folder of runs, with the ledger.
        before: stages whose jobs this one waits for.
        force: a person's reason.

    Raises:
        InputError: the ledger was edited, or the reason is not one line.
    """
    if not force.isprintable():
        raise InputError("the reason of --force is not one line of text", "It goes into the job's script")
    stage, _ = asked.stage_and_model()
    ledger = runs / evidence.LEDGER
    evidence.require_whole(ledger)
    if stage.after and stage.after in before:
        return Ground(f"{stage.after} has to end well first", waits_for=stage.after, open=True)
    found = opening_of(asked, None, evidence.read(ledger), runs)
    if found.open:
        return Ground(found.why, basis=found.basis.digest if found.basis else "", open=True)
    if stage.after == GATES and found.missing and not stage.rows:
        return Ground("the job runs the gates first", open=True)
    if force:
        return Ground(found.why, forced=f"{stage.name} was forced although {found.why}: {force}", open=True)
    return Ground(found.why)


def finding_of(asked: Asked, ground: Ground) -> Iterator[Finding]:
    """Why a stage may not begin, where it may not."""
    if not ground.open:
        stage, _ = asked.stage_and_model()
        yield Finding(
            "ladder.shut",
            f"{stage.name} is shut: {ground.why}",
            f"Submit {stage.after} first, or both in a chain; or --force REASON, which stains what follows",
        )


def stages_of_jobs(runs: Path, jobs: Sequence[str], engine: str) -> Iterator[str]:
    """The stages that queued jobs run, of those whose folders lie in ``runs``."""
    for path in runs.glob("*/job.json") if jobs else ():
        plan = read_plan(path.parent)
        if plan.get("job") in jobs and plan["pins"].get("engine") == engine and "stage" in plan["pins"]:
            yield str(plan["pins"]["stage"])


def basis_of(ground: Ground, asked: Asked, driver: str, entries: Sequence[Evidence], runs: Path) -> Basis:
    """What a run stood on that has ended, with the entry that opened it.

    A stage that a job before it should have opened is stained where the ledger holds no pass of that one.
    """
    if ground.forced:
        return Basis(Opening(False, ground.why), ground.forced)
    if ground.basis:
        entry = next((each for each in entries if each.digest == ground.basis), None)
        if entry is not None:
            return Basis(Opening(True, ground.why, entry), "")
        return Basis(Opening(False, ground.why), f"the entry that opened it, {ground.basis[:12]}, is gone")
    found = opening_of(asked, driver, entries, runs)
    if ground.waits_for and not found.open:
        return Basis(found, f"the job of {ground.waits_for} ended well, but {found.why}")
    return Basis(found, "")
