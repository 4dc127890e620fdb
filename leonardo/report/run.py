"""A run folder, read with patience: what is there, and what is missing in words."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from leonardo.errors import InputError
from leonardo.evaluation.compare import compare
from leonardo.evaluation.records import Comparison, EvaluationRecord, RunFacts, read_record
from leonardo.evaluation.verdict import StepMapping

STEPS, FACTS, COMPARISON = "steps.jsonl", "run.json", "comparison.json"
EVALUATION_BASE, EVALUATION_TRAINED = "evaluation-base.json", "evaluation-trained.json"


@dataclass
class Run:
    """What a run folder holds; ``missing`` says in sentences what it does not."""

    steps: list[StepMapping] = field(default_factory=list)
    base: EvaluationRecord | None = None
    trained: EvaluationRecord | None = None
    comparison: Comparison | None = None
    facts: RunFacts = field(default_factory=RunFacts)
    missing: list[str] = field(default_factory=list)


def read_run(folder: Path) -> Run:
    """Read a run folder. A missing file is noted, not an error; so is a last step record that was cut short.

    Raises:
        InputError: if the folder does not exist or holds none of the files, or one is not what its name says.
    """
    if not folder.is_dir():
        raise InputError(f"{folder}: no such run folder", "Name a folder that a run has written")
    files = (STEPS, FACTS, COMPARISON, EVALUATION_BASE, EVALUATION_TRAINED)
    if not any((folder / file).exists() for file in files):
        raise InputError(f"{folder} holds no record of a run", f"One of these has to be there: {', '.join(files)}")
    run = Run()
    if (folder / STEPS).exists():
        run.steps, cut = _read_steps(folder / STEPS)
        run.missing += [cut] if cut else []
    if not run.steps:
        run.missing.append(f"No training step has been recorded ({STEPS}).")
    if (folder / FACTS).exists():
        run.facts = read_record(folder / FACTS, RunFacts)
    else:
        run.missing.append(f"The run has not described itself: driver, substitutions and configuration ({FACTS}).")
    for name, file in (("base", EVALUATION_BASE), ("trained", EVALUATION_TRAINED)):
        if (folder / file).exists():
            setattr(run, name, read_record(folder / file, EvaluationRecord))
        else:
            run.missing.append(f"The {name} policy has not been evaluated ({file}).")
    if (folder / COMPARISON).exists():
        run.comparison = read_record(folder / COMPARISON, Comparison)
    elif run.base and run.trained:
        try:
            run.comparison = compare(run.base, run.trained)
        except InputError as error:
            run.missing.append(f"There is no comparison: {error}.")
    return run


def series(steps: Sequence[StepMapping], name: str, position: int | None = None) -> tuple[list[int], list[float]]:
    """The steps' numbers and the values of a field (``a.b`` looks into ``a``) where it is a finite number.

    ``position`` picks from a field that is a list, for example 1 for the p95 of ``sandbox.reset_ms``.
    """
    numbers, values = [], []
    for place, step in enumerate(steps, start=1):
        value = step
        for part in name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if position is not None:
            value = value[position] if isinstance(value, list) and len(value) > position else None
        if isinstance(value, int | float) and math.isfinite(value):
            numbers.append(int(step.get("step", place)))
            values.append(float(value))
    return numbers, values


def total(steps: Sequence[StepMapping], name: str) -> int:
    """The sum of a count over the steps."""
    return int(sum(series(steps, name)[1]))


def _read_steps(path: Path) -> tuple[list[StepMapping], str]:
    words = path.read_text(errors="replace").splitlines()  # a line that is no text is no record
    lines = [(number, line) for number, line in enumerate(words, 1) if line.strip()]
    steps: list[StepMapping] = []
    for number, line in lines:
        try:
            step = json.loads(line)
        except json.JSONDecodeError:
            step = None
        if isinstance(step, dict):
            steps.append(step)
        elif number == lines[-1][0]:
            return steps, f"The last step record was cut short and left out (line {number} of {path.name})."
        else:
            raise InputError(f"{path}: line {number} is not a step record", "Mend or remove that line")
    return steps, ""
