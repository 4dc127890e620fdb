"""Both engines on the same tasks, side by side: what each run's records show, and desk against upstream, paired."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leonardo.errors import InputError
from leonardo.evaluation import Comparison, EvaluationRecord, RunFacts, compare
from leonardo.evaluation.records import read_record
from leonardo.files import write_verdict
from leonardo.gates.signal import signal_figures
from leonardo.gates.steps import read_records

SAME = ("upstream", "assets", "harness", "config", "seed", "driver", "stage", "model")
"""Pins that both runs must share, so that the engine is all that differs."""


@dataclass(frozen=True)
class EngineRun:
    """One engine's run."""

    engine: str
    folder: Path
    figures: dict[str, Any]
    gain: Comparison
    facts: RunFacts
    trained: EvaluationRecord


@dataclass(frozen=True)
class Engines:
    """Two runs, and the second's trained policy against the first's."""

    runs: tuple[EngineRun, EngineRun]
    between: Comparison


def compare_engines(first: Path, second: Path, out_path: Path) -> Engines:
    """Compare two runs of one stage with the same pins but the engine; writes ``out_path``.

    Raises:
        InputError: a run folder that holds no evaluated run, or a pin that differs; names it.
    """
    runs = (_read(first), _read(second))
    for name in SAME:
        left, right = (run.facts.pins.get(name) for run in runs)
        if left != right:
            raise InputError(
                f"{first} and {second} cannot be compared: pin {name} differs, {left} against {right}",
                "Run the stage with both engines on the same tasks",
            )
    if runs[0].engine == runs[1].engine:
        raise InputError(f"{first} and {second} are both of the engine {runs[0].engine}", "Name one run of each")
    between = compare(runs[0].trained, runs[1].trained)
    figures = {
        **{run.engine: {**run.figures, "gain": run.gain.difference.model_dump(mode="json")} for run in runs},
        "between": between.difference.model_dump(mode="json"),
    }
    pins = {name: runs[0].facts.pins.get(name) for name in SAME}
    write_verdict(out_path, all(run.figures["weights_agree"] is True for run in runs), figures, pins)
    return Engines(runs, between)


def _read(folder: Path) -> EngineRun:
    if not folder.is_dir():
        raise InputError(f"{folder}: no such run folder", "Name a folder that a stage has written")
    facts = read_record(folder / "run.json", RunFacts)
    base, trained = (read_record(folder / f"evaluation-{side}.json", EvaluationRecord) for side in ("base", "trained"))
    return EngineRun(
        engine=str(facts.pins.get("engine", "?")),
        folder=folder,
        figures=signal_figures(read_records(folder / "steps.jsonl")),
        gain=compare(base, trained),
        facts=facts,
        trained=trained,
    )
