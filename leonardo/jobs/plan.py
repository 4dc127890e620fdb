"""A job before it is text: what runs, on what, for how long, and what is recorded of it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Resources:
    """What is asked of the scheduler; a node's share where not said otherwise.

    Attributes:
        partition, quality, account: as the scheduler knows them; "" leaves an option out.
        nodes, minutes: of the whole job.
        cores, memory, gpus, tmp: a node; sizes in GiB.
        gres: the options that ask for GPUs and node-local space.
        exclusive: whole nodes.
        reserved_cores: of ``cores``, kept from sandboxes.
        options: further ones, as they are.
    """

    partition: str
    nodes: int
    minutes: int
    cores: int
    memory: float
    tmp: float
    gpus: int = 0
    quality: str = ""
    account: str = ""
    gres: tuple[str, ...] = ()
    exclusive: bool = False
    reserved_cores: int = 0
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobPlan:
    """A job.

    Attributes:
        name: of the job, for the queue.
        title: for people.
        command: the main step, on the first node; with ``ray``, the driver of a Ray cluster over all nodes.
        folder: of the run, on a file system that all nodes see.
        project: the checkout that it runs from.
        python: of the project's environment.
        scratch: node-local folder under which the job makes its own.
        resources: what it asks for.
        sandboxes: what it asks for beside that, on nodes of another kind for sandboxes alone; None for none.
        ray: the ``ray`` program of the trainer's environment; None where the step needs no cluster.
        unpacked: a data set's rows, whose layers are unpacked on the nodes with sandboxes while the trainer loads.
        ray_places: "CPUs" that Ray is told of, a node; 0 for the cores that are not reserved.
        ray_options: further ones of ``ray start``, on every node.
        set_up: lines of shell at the start.
        environment: variables, beside those that every job has.
        needs: files and folders that must be there on every node, with what to do where one is not.
        files: what lies in the folder before it starts: name -> text.
        start_within, stall_after: seconds that the step may take for its first record in ``steps.jsonl``, and for each
            later one, before it is ended; 0 for not looking.
        array: number of tasks of an array; 0 for a single job.
        restarts: how often it may be queued again.
        grace: seconds before the limit at which it is told to save.
        patience: of these, how many the step has to save and end by itself, before it gets TERM.
        pins: what goes into the evidence: stage, engine, model, site and what they are at.
    """

    name: str
    title: str
    command: tuple[str, ...]
    folder: Path
    project: Path
    python: Path
    scratch: Path
    resources: Resources
    sandboxes: Resources | None = None
    ray: Path | None = None
    unpacked: Path | None = None
    ray_places: int = 0
    ray_options: tuple[str, ...] = ()
    set_up: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    start_within: float = 0.0
    stall_after: float = 0.0
    array: int = 0
    restarts: int = 3
    grace: int = 300
    patience: int = 0
    pins: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For ``job.json``."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(entry) for name, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, tuple | list) else value
