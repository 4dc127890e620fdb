"""What is missing below a stage, run first; and the ladder as it stands."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from leonardo import evidence
from leonardo.assets.progress import say
from leonardo.evidence import Evidence
from leonardo.gates.criteria import apply
from leonardo.sandbox.drivers import open_driver
from leonardo.site import load_site
from leonardo.stages.asked import Asked
from leonardo.stages.definition import Stage
from leonardo.stages.environment import desk_rows, gates_command
from leonardo.stages.gate import Selection
from leonardo.stages.ladder import GATES, Opening, criteria_below, ladder, name_below, opening
from leonardo.stages.pins import differences, known_pins

if TYPE_CHECKING:
    from leonardo.stages.training import StageOutcome


@dataclass(frozen=True)
class Rung:
    """A stage as the ledger has it.

    Attributes:
        name: of the stage, or of the gates; ``shows``: what a pass is evidence for.
        state: ``passed``, ``failed``, ``open`` or ``shut``.
        why: the state in a sentence.
        entry, number: the last with the pins asked for; None, 0 where there is none.
    """

    name: str
    shows: str
    state: str
    why: str
    entry: Evidence | None = None
    number: int = 0


def run_with_what_is_missing(
    asked: Asked, *, stages: bool, runs: Path, out: Path, console: Console
) -> "Iterator[StageOutcome]":
    """Run what is missing below a stage, lowest first, and then the stage. Ends with the first that does not pass.

    A rung below that failed is not tried again: what shuts the stage is then said by the stage itself.

    Args:
        stages: run missing stages, too; else only the gates, which take half a minute.
    """
    from leonardo.stages.training import run_stage  # imports PyTorch, which the ladder's state does without

    for name in [*_missing_below(asked, stages, runs, console), asked.name]:
        if name == GATES:
            # where they fail, they are in the ledger, and the next stage says that it is shut
            rows = Selection(desk_rows(runs))
            gates_command(rows, out / "gates.json", driver_name=asked.driver, site=asked.site, runs=runs)
            continue
        stage = asked if name == asked.name else replace(asked, name=name, force="", fresh=False)
        outcome = run_stage(stage, runs=runs, out_path=out / f"{Path(name).stem}.json", console=console)
        yield outcome
        if not outcome.ok:
            return


def rungs(asked: Asked, runs: Path) -> list[Rung]:
    """The ladder as the ledger has it, for an engine, site, driver and seed, by the pins known before a run."""
    entries = evidence.read(runs / evidence.LEDGER)
    found = []
    with open_driver(asked.driver) as driver:
        name = driver.name
    for stage in ladder():
        here = replace(asked, name=stage.name)
        pins = pins_of(here, name)
        if not found:
            found.append(_gates_rung(pins, entries))
        found.append(_rung(here.stage_and_model()[0], pins, entries, opening_of(here, name, entries, runs)))
    return found


def _missing_below(asked: Asked, stages: bool, runs: Path, console: Console) -> list[str]:
    """The rungs below that nothing but a run is missing of, lowest first."""
    ledger = runs / evidence.LEDGER
    evidence.require_whole(ledger)
    entries = evidence.read(ledger)
    with open_driver(asked.driver) as driver:
        name = driver.name
    missing: list[str] = []
    here = asked
    while after := here.stage_and_model()[0].after:
        found = opening_of(here, name, entries, runs)
        if found.open or not found.missing or not (stages or after == GATES):
            break
        say(console, f"{Path(here.name).stem} needs {after}, which runs first: {found.why}")
        if after == GATES:
            return [GATES, *missing]
        here = replace(here, name=name_below(here.name, after))
        missing.insert(0, here.name)
    return missing


def opening_of(asked: Asked, driver: str | None, entries: Sequence[Evidence], runs: Path) -> Opening:
    """Whether the ledger opens a stage. ``driver``: of its sandboxes; None where that is not known yet."""
    stage, model = asked.stage_and_model()
    criteria = criteria_below(asked.name, stage.after, model)
    return opening(stage.after, pins_of(asked, driver), entries, runs, criteria)


def pins_of(asked: Asked, driver: str | None) -> dict[str, Any]:
    """A stage's pins as far as they are known before it runs."""
    stage, model = asked.stage_and_model()
    environment = asked.place.environment if asked.engine == "upstream" else None
    pins = known_pins(stage, model, asked.engine, load_site(asked.site), driver or "", asked.seed, environment)
    return {name: value for name, value in pins.items() if name != "driver" or driver is not None}


def _rung(stage: Stage, pins: dict[str, object], entries: Sequence[Evidence], found: Opening) -> Rung:
    own = [
        (number, entry)
        for number, entry in enumerate(entries, 1)
        if entry.name == stage.name and not list(differences(pins, entry.pins, of_gates=False))
    ]
    if own:
        number, entry = own[-1]
        unmet = [finding for finding in apply(stage.criteria, entry.figures) if not finding.ok]
        if entry.verdict == "pass" and unmet:
            said = f"it passed by other criteria than its file has now: {unmet[0].sentence}"
            return Rung(stage.name, stage.shows, "failed", said, entry, number)
        state = "passed" if entry.verdict == "pass" else "failed"
        return Rung(stage.name, stage.shows, state, entry.says or state, entry, number)
    return Rung(stage.name, stage.shows, "open" if found.open else "shut", found.why)


def _gates_rung(pins: dict[str, object], entries: Sequence[Evidence]) -> Rung:
    shows = "tasks can be built, reset and judged here"
    own = [
        (number, entry)
        for number, entry in enumerate(entries, 1)
        if entry.name == GATES and not list(differences(pins, entry.pins, of_gates=True))
    ]
    if not own:
        return Rung(GATES, shows, "open", "it needs no evidence before it")
    number, entry = own[-1]
    state = "passed" if entry.verdict == "pass" else "failed"
    return Rung(GATES, shows, state, entry.says or state, entry, number)
