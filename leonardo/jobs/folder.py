"""A job's run folder: what was submitted, with which environment and pins, who holds it, what happened.

::

    job.json         the plan and, once it is queued, the job's id
    job.sh           the script
    environment.txt  the packages of the project's environment, name==version
    lock.json        whose the folder is: the job's id; removed by ``collect`` when the job has ended
    events.jsonl     what the script noted: started, told to stop, queued again, ended with which code
    events-<n>.jsonl, evidence-<n>.json: of jobs before, where this one goes on in their folder
    ended*.json      the main step's exit code
    slurm-*.log      output
    evidence.json    what ``collect`` made of it
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from leonardo.errors import InputError
from leonardo.files import read_json, write_atomic, write_json
from leonardo.jobs.plan import JobPlan

EVIDENCE = "evidence.json"
PLAN, SCRIPT, LOCK, EVENTS, ENVIRONMENT = "job.json", "job.sh", "lock.json", "events.jsonl", "environment.txt"


_EARLIER = "events-*.jsonl"


@dataclass(frozen=True)
class Event:
    """Something that a job's script noted."""

    time: str
    job: str
    task: str
    restart: int
    event: str
    code: int | None


_EVENT = TypeAdapter(Event)


class _Form(BaseModel):
    """As far as is relied on; there may be more."""

    model_config = ConfigDict(extra="allow")


class Asked(_Form):
    """Of the scheduler, a node."""

    nodes: int
    tmp: float = 0.0
    gpus: int = 0


class Pins(_Form):
    """What the job runs; a stage is there with engine and seed."""

    site: str = ""
    stage: str | None = Field(default=None, pattern=r"^[^/\x00]+$")
    engine: str = Field(default="", pattern=r"^[^/\x00]*$")
    seed: int = 0
    checkpoints: list[str] = []


class Job(_Form):
    """``job.json``: the plan, and what became of it."""

    name: str
    array: int = Field(ge=0)
    resources: Asked
    sandboxes: Asked | None = None
    pins: Pins
    folder: str = ""
    ray: str | None = None
    needs: dict[str, str] = {}
    job: str = Field(default="", pattern=r"^[0-9]*$")
    collected: bool = False


def name_folder(runs: Path, name: str) -> Path:
    """A new run folder's path, which the time makes unlike others."""
    return (runs if str(runs).startswith("$") else runs.absolute()) / f"{name}-job-{datetime.now(UTC):%Y%m%dT%H%M%S}"


def write_folder(plan: JobPlan, script: str) -> Path:
    """Make the folder and what belongs in it before submission. Returns the script's path.

    Raises:
        InputError: the folder is another job's; ``leonardo launch check`` says whose.
    """
    plan.folder.mkdir(parents=True, exist_ok=True)
    _take(plan.folder)
    _set_aside(plan.folder)
    write_json(plan.folder / PLAN, plan.as_json())
    write_atomic(plan.folder / ENVIRONMENT, "".join(f"{line}\n" for line in packages()))
    for name, text in plan.files.items():
        write_atomic(plan.folder / name, text)
    path = plan.folder / SCRIPT
    write_atomic(path, script)
    path.chmod(0o755)
    return path


def note_job(folder: Path, job: str) -> None:
    """Write the id of the queued job into plan and lock."""
    plan = read_plan(folder)
    write_json(folder / PLAN, plan | {"job": job})
    write_json(folder / LOCK, _owner() | {"job": job})


def release(folder: Path) -> None:
    """Let the folder go."""
    (folder / LOCK).unlink(missing_ok=True)


def holder(folder: Path) -> dict[str, Any] | None:
    """Whose the folder is, with ``job`` once it is queued; None where nobody's."""
    try:
        held = read_json(folder / LOCK)
    except FileNotFoundError:
        return None
    except InputError:
        held = None
    return held if isinstance(held, dict) else {"host": "?", "process": 0, "time": "?"}


def read_plan(folder: Path) -> dict[str, Any]:
    """``job.json``. Raises InputError where the folder is no job's, or the file is damaged."""
    try:
        values = read_json(folder / PLAN)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{folder} is no job's folder ({PLAN} cannot be read)", "Name one below runs/") from error
    require_form(folder / PLAN, values, Job)
    return dict(values)


def require_form(path: Path, values: Any, form: type[BaseModel]) -> None:
    """What a file of a job's folder holds is of its form. Raises InputError; names the file and what is wrong."""
    try:
        form.model_validate(values, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise InputError(f"{path}: {where}: {first['msg']}", "It was damaged, or is of another version") from error


def _set_aside(folder: Path) -> None:
    """Events and evidence of a job before this one, which goes on in its folder, are kept under other names."""
    number = len(list(folder.glob(_EARLIER))) + 1
    for path in (folder / EVENTS, folder / EVIDENCE):
        if path.is_file():
            path.rename(path.with_stem(f"{path.stem}-{number}"))


def earlier_events(folder: Path) -> Iterator[Event]:
    """What the scripts of jobs before noted, which this one goes on from."""
    for path in sorted(folder.glob(_EARLIER)):
        yield from _events(path)


def events(folder: Path) -> Iterator[Event]:
    """What the script noted, oldest first; a line that was cut short is passed over."""
    yield from _events(folder / EVENTS)


def _events(path: Path) -> Iterator[Event]:
    lines = path.read_bytes().splitlines() if path.is_file() else []
    for line in lines:
        with suppress(ValidationError):
            yield _EVENT.validate_json(line, strict=True)


def packages() -> list[str]:
    """The packages of this environment, ``name==version``, sorted."""
    found = {(entry.metadata["Name"] or "?").lower(): entry.version for entry in distributions()}
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def _take(folder: Path) -> None:
    try:
        descriptor = os.open(folder / LOCK, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
    except FileExistsError as error:
        held = holder(folder) or {}
        raise InputError(
            f"{folder} is held by job {held.get('job', 'that was never queued')} since {held.get('time', '?')}",
            "Name another folder, or let it go when that job has ended: leonardo launch collect",
        ) from error
    with os.fdopen(descriptor, "w") as stream:
        json.dump(_owner(), stream)


def _owner() -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"host": socket.gethostname(), "process": os.getpid(), "time": now}
