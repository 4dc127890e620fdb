"""The verdict on a stage that ran as a job of upstream's trainer, from what the job left, however it came to its end.

The figures are those of ``leonardo stage run``, of the same records. A job that the machine, a person or the time limit
ended is no verdict on learning: the stage stays open, and the ledger gets no entry of it beside the job's own.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from leonardo import evidence
from leonardo.engine.upstream.own import CHECKPOINT
from leonardo.engine.upstream.state import saved_models
from leonardo.engine.upstream.symptoms import classify
from leonardo.errors import FailureClass
from leonardo.evaluation import RunFacts
from leonardo.gates.criteria import Finding, apply
from leonardo.gates.signal import signal_figures
from leonardo.gates.steps import StepRecord, readable_records
from leonardo.hooks.sandbox import drivers_of
from leonardo.jobs.folder import Event, earlier_events, events
from leonardo.jobs.offline import model_findings
from leonardo.stages.launch_basis import basis_of
from leonardo.stages.launch_note import PACKAGES, SUBMITTED, Note, read_note
from leonardo.stages.verdicts import FACTS, STEPS, record, sentence_of

RECORDS = (
    FACTS, STEPS, "failures.jsonl", "weights.jsonl", "ended.json", "job.sh", SUBMITTED, "environment.txt", PACKAGES,
)  # fmt: skip
"""Files of the job's folder that the stage's entry names with their hashes."""

_FROM_OUTSIDE = ("NODE_FAIL", "BOOT_FAIL", "DEADLINE", "TIMEOUT", "PREEMPTED", "OUT_OF_MEMORY", "CANCELLED")
_NO_VERDICT = {2: "something that the job needs was missing", 3: "the machine failed", 143: "it was told to stop"}
_MACHINES = (FailureClass.SPACE, FailureClass.MIRROR, "engine-lost", "actor-lost", "out-of-memory", "collective")
"""Classes of what a trainer's log says of a failure that are the machine's, though the trainer made an error of it."""

_LIMITS = (
    "Whether the trained model is better than its base: this job evaluates nothing (leonardo evaluate).",
    "How the run would have gone on other nodes: it is one run with one seed.",
)


@dataclass(frozen=True)
class Verdict:
    """What came of the stage: ``pass``, ``fail`` or ``open``."""

    word: str
    sentence: str
    stains: tuple[str, ...]
    findings: Sequence[Finding]
    title: str


def judge(folder: Path, job: dict[str, Any], runs: Path, console: Console) -> Verdict | None:
    """Judge the stage of an ended job: ``run.json``, ``out/<stage>.json``, and the ledger's entry where it was decided.

    Args:
        folder: of the job.
        job: what ``leonardo.jobs.collect`` found.
        runs: folder of the ledger.

    Returns:
        None where the job is none of upstream's trainer.
    """
    note = read_note(folder)
    if note is None:
        return None
    stage = note.stage
    records, damaged = readable_records(folder / STEPS)
    figures = _figures(folder, job, note, records)
    outside = _from_outside(folder, job["figures"]) or (damaged and "its step records are damaged")
    findings = apply(stage.criteria, figures)
    pins = note.pins | {"driver": "+".join(drivers_of(folder)), "job": job["pins"].get("job", "")}
    entries = evidence.read(runs / evidence.LEDGER)
    basis = basis_of(note.ground, note.asked, pins["driver"], entries, runs)
    if outside:
        sentence = (
            f"{stage.name} is open: {outside}, after {figures['updates']} of {figures['updates_asked']} updates; "
            f"that is no verdict on learning ({job['reason']})."
        )
    else:
        sentence = sentence_of(stage, findings, figures, None, job["reason"])
    title = f"{stage.name}, upstream's trainer in a job, seed {note.asked.seed}"
    facts = RunFacts(
        name=title,
        stage=stage.name,
        site=str(pins["site"]),
        driver=pins["driver"],
        pins=pins,
        configuration={"stage": stage.model_dump(mode="json"), "model": note.model.model_dump(mode="json")},
        limits=list(_LIMITS),
        machine={"nodes": figures["nodes"]},
        seconds=figures["seconds"],
    )
    out_path = folder / "out" / f"{stage.name}.json"
    record(
        stage, facts, basis, findings, sentence, figures, folder, runs, out_path, console,
        files=RECORDS, undecided=bool(outside),
    )  # fmt: skip
    word = "open" if outside else "pass" if all(finding.ok for finding in findings) else "fail"
    return Verdict(word, sentence, basis.stains, findings, title)


def _from_outside(folder: Path, figures: dict[str, Any]) -> str:
    """What ended the job where it was not the trainer's own doing, in words; "" where it was."""
    code, states = figures["exit_code"], figures["state"].split(", ")
    if code == 0 and states in (["COMPLETED"], ["unknown"]):
        return ""
    if code in _NO_VERDICT:
        return _NO_VERDICT[code]
    if code == 1 and (logs := sorted(folder.glob("slurm-*.log"), key=lambda path: path.stat().st_mtime)):
        kind, _, line = classify(logs[-1], code).partition(": ")
        if kind in _MACHINES:
            return f"{kind} ({line})"
    ended = [state for state in states if state in _FROM_OUTSIDE]
    return f"the job's end was {ended[0]}" if ended else "" if code is not None else "how the job ended is not known"


def _figures(folder: Path, job: dict[str, Any], note: Note, records: Sequence[StepRecord]) -> dict[str, Any]:
    saved = saved_models(folder / CHECKPOINT)
    own = job["figures"]
    hours = sum(_running([*earlier_events(folder), *events(folder)])) / 3600
    return signal_figures(records) | {
        "engine": "upstream",
        "exit_code": own["exit_code"],
        "updates_asked": note.stage.upstream_updates(),
        "checkpoint_whole": bool(saved) and not list(model_findings(saved[-1], "saved")),
        "starts": own["starts"],
        "restarts": own["restarts"],
        "state": own["state"],
        "nodes": own.get("nodes", ""),
        "training_seconds": round(sum(step.times.get("step", 0.0) for step in records), 1),
        "seconds": round(hours * 3600, 1),
        "node_hours": round(hours * own.get("node_count", 1), 4),
    }


def _running(noted: Sequence[Event]) -> list[float]:
    """Seconds of each start of the job, as far as the job itself noted its end."""
    found, began = [], None
    for event in noted:
        with suppress(ValueError):  # the time is no time
            moment = datetime.fromisoformat(event.time).astimezone()
            if event.event == "started":
                began = moment
            elif event.event in ("ended", "queued again") and began is not None:
                found.append((moment - began).total_seconds())
                began = None
    return found
