"""What a job is doing: Slurm's word, the last event, the trainer's steps, the end of its output."""

import glob
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leonardo.gates.steps import readable_records
from leonardo.jobs import slurm
from leonardo.jobs.folder import SCRIPT, Event, events, read_plan

_TAIL = 4096
STEPS = "steps.jsonl"


@dataclass(frozen=True)
class Look:
    """A job at a moment.

    Attributes:
        job: id; "" where it was never queued.
        states: Slurm's; one a task of an array; empty where Slurm knows the job no more.
        awaited: Slurm's word on each job that it waits for, by id.
        last: event.
        steps: records written, and the last of them; ``damaged`` says which lines are none.
        log: the file with the output.
        forgotten: jobs of this folder in the queue whose id was not noted: submit was killed.
    """

    job: str
    states: tuple[slurm.State, ...]
    last: Event | None
    steps: int
    record: Any
    log: Path | None
    awaited: dict[str, str] = field(default_factory=dict)
    forgotten: tuple[str, ...] = ()
    damaged: str = ""

    @property
    def ended(self) -> bool:
        """Whether nothing more will come."""
        return not self.job or (bool(self.states) and all(state.ended for state in self.states)) or self._forgotten

    @property
    def _forgotten(self) -> bool:
        return not self.states and self.last is not None and self.last.event == "ended"

    def line(self) -> str:
        """For people."""
        if not self.job and self.forgotten:
            return f"job {', '.join(self.forgotten)} was queued, and not noted; end it: leonardo launch cancel"
        if not self.job:
            return "never queued"
        counts: dict[str, int] = {}
        for state in self.states:
            counts[state.name.lower()] = counts.get(state.name.lower(), 0) + 1
        words = [", ".join(f"{count} {name}" if len(self.states) > 1 else name for name, count in counts.items())]
        if not self.states:
            words = ["no longer known to Slurm"]
        first = self.states[0] if self.states else None
        if first is not None and (why := first.never_began or ("" if first.ended else first.reason)):
            words.append(f"({why})")
        if self.awaited:
            words.append(f"after {', '.join(f'job {job}: {state}' for job, state in self.awaited.items())}")
        if first is not None and first.nodes:
            words.append(f"on {first.nodes}")
        if self.last is not None:
            words.append(f"· {self.last.event} at {self.last.time}")
        if self.steps:
            words.append(f"· step {self.steps}: {_of_record(self.record)}")
        if self.damaged:
            words.append(f"· {self.damaged}")
        return f"job {self.job}: {' '.join(words)}"


def look(folder: Path) -> Look:
    """A job's state now. Raises InputError where the folder is no job's, InfrastructureError where Slurm is away."""
    plan = read_plan(folder)
    job = str(plan.get("job", ""))
    states = slurm.states(job) if job else []
    waiting = [state for state in states if state.name == "PENDING"]
    awaited = {before: _word(slurm.states(before)) for state in waiting[:1] for before in state.after}
    forgotten = [] if job else slurm.queued(folder.absolute() / SCRIPT)
    noted = list(events(folder))
    steps = steps_file(folder, plan)
    records, damaged = readable_records(steps) if steps else ([], "")
    logs = sorted(folder.glob("slurm-*.log"), key=lambda path: path.stat().st_mtime)
    return Look(
        job=job,
        states=tuple(states),
        last=noted[-1] if noted else None,
        steps=len(records),
        record=records[-1] if records else None,
        log=logs[-1] if logs else None,
        awaited=awaited,
        forgotten=tuple(forgotten),
        damaged=damaged,
    )


def _word(states: list[slurm.State]) -> str:
    """What Slurm says of all tasks of a job."""
    return ", ".join(sorted({state.name.lower() for state in states})) or "no longer known to Slurm"


def steps_file(folder: Path, plan: dict[str, Any]) -> Path | None:
    """The step records of a job: in its own folder, or in the run folder that its stage made beside it."""
    if (folder / STEPS).is_file():
        return folder / STEPS
    made = stage_folder(folder, plan)
    return made / STEPS if made is not None and (made / STEPS).is_file() else None


def stage_folder(folder: Path, plan: dict[str, Any]) -> Path | None:
    """The run folder that the job's stage made, as its log names it or by name and time; None if there is none yet."""
    pins = plan["pins"]
    if "stage" not in pins:
        return None
    pattern = glob.escape(f"{pins['stage']}-{pins.get('engine', '')}-seed{pins.get('seed', 0)}-") + "*"
    started = folder.stat().st_ctime if not (folder / "job.sh").exists() else (folder / "job.sh").stat().st_mtime
    made = [path for path in folder.parent.glob(pattern) if path.is_dir() and path.stat().st_ctime >= started]
    return max(made, key=lambda path: path.stat().st_ctime, default=None)


def new_output(log: Path, position: int) -> tuple[str, int]:
    """What a log has got since ``position``; the first time at most its end. Returns it and the new position."""
    size = log.stat().st_size
    if position < 0:
        position = max(0, size - _TAIL)
    if size < position:
        position = 0
    with log.open("rb") as stream:
        stream.seek(position)
        data = stream.read()
    return data.decode(errors="replace"), position + len(data)


def last_lines(log: Path, count: int) -> Iterator[str]:
    """The end of a log."""
    text, _ = new_output(log, -1)
    yield from text.splitlines()[-count:]


def _of_record(record: Any) -> str:
    values = record.model_dump() if hasattr(record, "model_dump") else vars(record)
    wanted = ("reward_mean", "gradient_norm", "mask_fraction")
    return ", ".join(f"{name} {values[name]:.3g}" for name in wanted if isinstance(values.get(name), int | float))
