"""The transfer study over several seeds: a run of its own for each, then all of them side by side.

The rule over seeds is there before any run: it says of a cell what every seed says of it, and else that nothing is
shown. The study passes where the run of every seed does.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from leonardo import evidence
from leonardo.files import write_verdict
from leonardo.gates.direction import Direction
from leonardo.stages.transfer import TransferOutcome, run_transfer
from leonardo.stages.transferfile import Kind, Transfer, load_transfer
from leonardo.stages.transfermatrix import Effect


@dataclass(frozen=True)
class OverSeeds:
    """A cell's effect, seed by seed."""

    model: str
    start: str
    on: Kind
    effects: tuple[Effect, ...]

    @property
    def differences(self) -> list[float]:
        """Trained minus base of every seed that has one."""
        found = [effect.comparison.difference.value for effect in self.effects]
        return [value for value in found if value is not None]

    @property
    def mean(self) -> float | None:
        """Of the differences."""
        return statistics.mean(self.differences) if self.differences else None

    @property
    def spread(self) -> float | None:
        """Their standard deviation (n - 1); None of fewer than two."""
        return statistics.stdev(self.differences) if len(self.differences) > 1 else None

    @property
    def direction(self) -> Direction:
        """By the rule over seeds."""
        said = {effect.direction for effect in self.effects}
        return said.pop() if len(said) == 1 else "none shown"


@dataclass(frozen=True)
class SeedsOutcome:
    """What the study found over its seeds."""

    ok: bool
    sentence: str
    stage: Transfer
    seeds: tuple[int, ...]
    outcomes: Sequence[TransferOutcome]
    cells: Sequence[OverSeeds]


def run_seeds(
    name: str | Path, *, site: str | Path, driver_name: str, runs: Path, out: Path, console: Console
) -> SeedsOutcome:
    """Run the study with each of its file's seeds, or what of it is not there yet, and put the runs side by side.

    Each run writes a verdict into ``out`` and its entry of the ledger; then the study does, ``<its name>.json``. See
    :func:`leonardo.stages.transfer.run_transfer`.
    """
    stage = load_transfer(name)
    outcomes = [
        run_transfer(
            name,
            seed=seed,
            site=site,
            driver_name=driver_name,
            runs=runs,
            out=out,
            console=console,
            to_come=stage.seeds[number:],
        )
        for number, seed in enumerate(stage.seeds, 1)
    ]
    found = put_together(stage, outcomes)
    passed = dict(zip(map(str, stage.seeds), (outcome.ok for outcome in outcomes), strict=True))
    figures = {"seeds_pass": passed, "effects": figures_of(found.cells)}
    pins = outcomes[0].pins | {"seed": list(stage.seeds)}
    write_verdict(out / f"{stage.name}.json", found.ok, figures, pins)
    records = [path for outcome in outcomes for path in sorted(outcome.run_folder.glob("comparison-*.json"))]
    judged = (
        evidence.Judged(figure=f"seed {seed} passes", value=ok, threshold="is true", ok=ok)
        for seed, ok in passed.items()
    )
    evidence.append(
        runs / evidence.LEDGER,
        evidence.Evidence(
            name=f"{stage.name}-seeds", verdict="pass" if found.ok else "fail", figures=figures, pins=pins,
            says=found.sentence, kind="stage", site=str(outcomes[0].site), criteria=tuple(judged),
            records=evidence.record_files(runs, records),
        ),
    )  # fmt: skip
    return found


def put_together(stage: Transfer, outcomes: Sequence[TransferOutcome]) -> SeedsOutcome:
    """The runs of a study's seeds side by side."""
    effects = zip(*(outcome.matrix.effects for outcome in outcomes), strict=True)
    cells = [OverSeeds(each[0].model, each[0].start, each[0].on, each) for each in effects]
    failed = [seed for seed, outcome in zip(stage.seeds, outcomes, strict=True) if not outcome.ok]
    numbers = ", ".join(map(str, failed or stage.seeds))
    sentence = f"{stage.name} {'fails' if failed else 'passes'} with the seeds {numbers} of {len(stage.seeds)}."
    return SeedsOutcome(not failed, sentence, stage, stage.seeds, outcomes, cells)


def figures_of(cells: Sequence[OverSeeds]) -> dict[str, Any]:
    """For machines."""
    return {
        f"{cell.model}: {cell.start} on {cell.on}": {
            "differences": [effect.comparison.difference.value for effect in cell.effects],
            "directions": [effect.direction for effect in cell.effects],
            "mean": cell.mean,
            "spread": cell.spread,
            "direction": cell.direction,
        }
        for cell in cells
    }
