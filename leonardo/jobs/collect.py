"""What became of a job, whatever its end was: one evidence file, one entry of the ledger, and the folder let go."""

import json
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from leonardo import evidence
from leonardo.errors import InputError
from leonardo.files import write_json
from leonardo.gates.steps import read_records
from leonardo.jobs import slurm
from leonardo.jobs.folder import EVIDENCE, PLAN, Event, events, read_plan, release
from leonardo.jobs.follow import last_lines, stage_folder, steps_file
from leonardo.jobs.unpacked import read_unpacked

_LINES = 12


def collect(folder: Path, ledger: Path) -> dict[str, Any]:
    """Gather a job's records and evidence.

    Returns:
        What was written to ``evidence.json``: ``ok``, ``reason``, ``figures``, ``pins``.

    Raises:
        InputError: the job has not ended, or the folder is no job's.
    """
    plan = read_plan(folder)
    if plan.get("collected") and (folder / EVIDENCE).is_file():  # the ledger names this very file
        return dict(json.loads((folder / EVIDENCE).read_bytes())) | {"again": True}
    job = str(plan.get("job", ""))
    if not job:
        release(folder)
        raise InputError(f"{folder}: its job was never queued; the folder is let go", "Submit it again")
    states = slurm.states(job) if slurm.available() else []
    noted = list(events(folder))
    if any(not state.ended for state in states):
        raise InputError(f"job {job} is {states[0].name.lower()}", "Wait: leonardo launch follow; or cancel it")
    figures = _figures(folder, plan, states, noted)
    reason = _reason(folder, states, noted, plan)
    ok = not reason
    made = stage_folder(folder, plan)
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


def _figures(folder: Path, plan: dict[str, Any], states: Sequence[slurm.State], noted: list[Event]) -> dict[str, Any]:
    steps = steps_file(folder, plan)
    ends = [event for event in noted if event.event == "ended"]
    codes = [state.exit_code for state in states if state.exit_code is not None]
    if not codes:
        codes = [event.code for event in ends if event.code is not None]
    return {
        "exit_code": max(codes) if codes else None,
        "state": ", ".join(sorted({state.name for state in states})) or "unknown",
        "nodes": ", ".join(sorted({state.nodes for state in states if state.nodes})),
        "node_count": plan["resources"]["nodes"] + (plan.get("sandboxes") or {"nodes": 0})["nodes"],
        "restarts": max([event.restart for event in noted], default=0),
        "starts": sum(event.event == "started" for event in noted),
        "steps": len(list(read_records(steps))) if steps else 0,
        "tasks": max(1, plan["array"]),
        "tasks_ended_well": sum(event.code == 0 for event in ends),
        **_unpacked(folder),
    }


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
    well = len({event.task for event in noted if event.event == "ended" and event.code == 0})
    if states and not bad:
        return ""
    if not states and well == tasks:
        return ""
    first = bad[0] if bad else None
    words = _WORDS.get(first.name, first.name.lower()) if first else "Slurm no longer knows the job"
    if first is not None and first.name == "FAILED":
        words = f"exit code {first.exit_code}"
    elif first is not None and first.name == "CANCELLED" and "Dependency" in first.reason:
        words = "a job before it in the chain did not end well"
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
