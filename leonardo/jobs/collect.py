"""What became of a job, whatever its end was: one evidence file, one entry of the ledger, and the folder let go."""

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue

from leonardo import evidence
from leonardo.errors import InputError
from leonardo.files import read_json, write_json
from leonardo.gates.steps import readable_records
from leonardo.jobs import slurm
from leonardo.jobs.folder import EVIDENCE, PLAN, SCRIPT, Event, events, read_plan, release, require_form
from leonardo.jobs.follow import STEPS, last_lines, stage_folder, steps_file
from leonardo.jobs.unpacked import read_unpacked

_LINES = 12


class _Figures(BaseModel):
    """Those that are relied on."""

    model_config = ConfigDict(extra="allow")

    exit_code: int | None
    state: str
    starts: int
    restarts: int


class _Found(BaseModel):
    """``evidence.json``."""

    model_config = ConfigDict(extra="allow")

    ok: bool
    reason: str
    figures: _Figures
    pins: dict[str, JsonValue]
    records: str


def collect(folder: Path, ledger: Path, finish: Callable[[dict[str, Any]], None] = lambda plan: None) -> dict[str, Any]:
    """Gather a job's records and evidence.

    Args:
        folder: of the job.
        ledger: gets the job's entry.
        finish: makes of the plan's job what is the job's as a whole, before anything is written. What it raises goes
            on where the job itself ended well; else it is one reason more.

    Returns:
        What was written to ``evidence.json``: ``ok``, ``reason``, ``figures``, ``pins``.

    Raises:
        InputError: the job has not ended, or the folder is no job's.
        InfrastructureError: Slurm cannot be asked; nothing is written then.
    """
    read_plan(folder)  # before there is something to lock
    with _alone(folder):
        return _collect(folder, ledger, finish)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One that collects at a time."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _collect(folder: Path, ledger: Path, finish: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    plan = read_plan(folder)
    job = str(plan.get("job", ""))
    if not plan.get("collected") and job and _entered(folder, plan, ledger):
        plan |= {"collected": True}  # and was killed before it could note it
        write_json(folder / PLAN, plan)
        release(folder)
    if plan.get("collected") and (folder / EVIDENCE).is_file():  # the ledger names this very file
        found = read_json(folder / EVIDENCE)
        require_form(folder / EVIDENCE, found, _Found)
        return dict(found) | {"again": True}
    if not job:
        if forgotten := slurm.queued(folder.absolute() / SCRIPT):
            raise InputError(
                f"{folder}: job {', '.join(forgotten)} was queued, and not noted", "End it: leonardo launch cancel"
            )
        release(folder)
        raise InputError(f"{folder}: its job was never queued; the folder is let go", "Submit it again")
    states = slurm.states(job)
    noted = list(events(folder))
    if any(not state.ended for state in states):
        raise InputError(f"job {job} is {states[0].name.lower()}", "Wait: leonardo launch follow; or cancel it")
    steps = steps_file(folder, plan)
    made = stage_folder(folder, plan)
    records, damaged = readable_records(steps) if steps else ([], _no_file(folder, made))
    figures = _figures(folder, plan, states, noted) | {"steps": len(records)}
    reason = "; ".join(filter(None, (_reason(folder, states, noted, plan), damaged)))
    try:
        finish(plan)
    except InputError as error:
        if not reason:  # the job ended well: what is missing or damaged can be brought back, and collected again
            raise
        reason = f"{reason}; {error.what}"
    ok = not reason
    found = {
        "ok": ok,
        "reason": reason,
        "figures": figures,
        "pins": {**plan["pins"], "job": job},
        "events": [vars(event) for event in noted],
        "records": str(made) if made else "",
    }
    write_json(folder / EVIDENCE, found)
    if not plan.get("collected"):
        evidence.append(
            ledger,
            evidence.Evidence(
                name=f"job {plan['name']}",
                verdict="pass" if ok else "fail",
                says=reason or f"job {job} ended well",
                figures=figures,
                pins={**plan["pins"], "job": job},
                site=str(plan["pins"].get("site", "")),
                records=evidence.record_files(ledger.parent, [folder / EVIDENCE]),
            ),
        )
        write_json(folder / PLAN, plan | {"collected": True})
    release(folder)
    return found


def _no_file(*folders: Path | None) -> str:
    """Which step records are something else, such as a folder or a link to nothing, in a line; "" for none."""
    paths = [folder / STEPS for folder in folders if folder]
    return next((f"{path} is no file" for path in paths if os.path.lexists(path) and not path.is_file()), "")


def _entered(folder: Path, plan: dict[str, Any], ledger: Path) -> bool:
    """Whether the ledger has this very job's entry."""
    path = os.path.relpath((folder / EVIDENCE).absolute(), ledger.parent.absolute())
    return any(
        entry.name == f"job {plan['name']}"
        and entry.pins.get("job") == plan["job"]
        and any(record.path == path for record in entry.records)
        for entry in evidence.read(ledger)
    )


def _figures(folder: Path, plan: dict[str, Any], states: Sequence[slurm.State], noted: list[Event]) -> dict[str, Any]:
    ends = [event for event in noted if event.event == "ended"]
    tasks, well = max(1, plan["array"]), _ended_well(noted)
    codes = [state.exit_code for state in states if state.exit_code is not None]
    if well < tasks and not any(codes):
        codes = []  # Slurm's 0 is the script's, which may have ended before its main step
    if not codes:
        codes = [event.code for event in ends if event.code is not None]
    return {
        "exit_code": max(codes) if codes else None,
        "state": ", ".join(sorted({state.name for state in states})) or "unknown",
        "nodes": ", ".join(sorted({state.nodes for state in states if state.nodes})),
        "node_count": plan["resources"]["nodes"] + (plan.get("sandboxes") or {"nodes": 0})["nodes"],
        "restarts": max([event.restart for event in noted], default=0),
        "starts": sum(event.event == "started" for event in noted),
        "tasks": tasks,
        "tasks_ended_well": well,
        **_unpacked(folder),
    }


def _ended_well(noted: list[Event]) -> int:
    """How many tasks noted that their main step ended well."""
    return len({event.task for event in noted if event.event == "ended" and event.code == 0})


def _unpacked(folder: Path) -> dict[str, Any]:
    """What was unpacked ahead, on the node that got the least of it; nothing where nothing was to be."""
    nodes = list(read_unpacked(folder).values())
    if not nodes:
        return {}
    least = min(nodes, key=lambda node: node["layers"])
    return {
        "layers_unpacked": f"{least['layers']} of {least['wanted']}",
        "unpack_seconds": max(node["seconds"] for node in nodes),
        "unpack_operations": max(node["operations"] for node in nodes),
    }


def _reason(folder: Path, states: Sequence[slurm.State], noted: list[Event], plan: dict[str, Any]) -> str:
    """Why the job did not end well, in a line; "" where it did."""
    bad = [state for state in states if state.name != "COMPLETED"]
    tasks = max(1, plan["array"])
    well = _ended_well(noted)
    if not bad and well == tasks:
        return ""
    first = bad[0] if bad else None
    words = "Slurm no longer knows the job"
    if first is not None:
        words = _WORDS.get(first.name, first.name.lower())
    elif states:
        words = f"the main step noted a good end in {well} of {tasks} tasks"
    if first is not None and first.name == "FAILED":
        words = f"exit code {first.exit_code}"
    elif first is not None and first.never_began:
        words = first.never_began
    told = [event.event for event in noted if event.event.startswith(("failed:", "no restart", "the main step"))]
    last = _last_words(folder)
    return "; ".join(filter(None, (words, told[-1] if told else "", f"the log ends: {last}" if last else "")))


_WORDS = {
    "CANCELLED": "it was cancelled",
    "TIMEOUT": "it ran into its time limit",
    "NODE_FAIL": "a node failed",
    "OUT_OF_MEMORY": "a node's memory was full",
    "PREEMPTED": "it was preempted and could not be queued again",
}


def _last_words(folder: Path) -> str:
    logs = sorted(folder.glob("slurm-*.log"), key=lambda path: path.stat().st_mtime)
    for log in reversed(logs):
        lines = [line.strip() for line in last_lines(log, _LINES) if line.strip()]
        said = [line for line in lines if not line.startswith(("job ", "srun:", "slurmstepd"))]
        if said:
            return shorten(said[-1], 300, placeholder=" …")
    return ""
