"""What a model starts from: where it lies, and whether a job of the desk engine can hold it."""

from collections.abc import Iterator
from pathlib import Path

from leonardo.errors import InputError
from leonardo.hooks.sources import find
from leonardo.jobs.arithmetic import desk_memory
from leonardo.jobs.findings import Finding
from leonardo.jobs.plan import Resources
from leonardo.site import Site
from leonardo.stages.definition import Model


def pretrained(model: Model, site: Site) -> Path | None:
    """What the model starts from: it lies in the site's cache, below ``models``, or where its name says.

    None for a policy that is made from nothing. Raises InputError where it is not on this machine.
    """
    if model.start == "desk":
        return None
    kept = site.cache / "models" / Path(model.start).name
    folder = kept if kept.is_dir() else find(model.start)
    if folder is None:
        raise InputError(f"{model.start} is not on this machine", f"Fetch it: hf download {model.start}")
    return folder


def start_findings(model: Model, site: Site) -> Iterator[Finding]:
    """A pretrained model that is not there: a warm start would end over it."""
    try:
        pretrained(model, site)
    except InputError as error:
        place = site.cache / "models" / Path(model.start).name
        yield Finding("offline.model", f"model {model.name}: {error.what}", f"{error.hint}; or put it into {place}")


def desk_findings(model: Model, asked: Resources) -> Iterator[Finding]:
    """Parameters that the desk engine's one node cannot hold; nothing where the model does not say how many."""
    needed = desk_memory(model.parameters)
    if model.parameters and needed > asked.memory:
        yield Finding(
            "nodes.memory",
            f"the desk engine needs about {needed:.0f} GiB for the {model.parameters:g} billion parameters of "
            f"{model.name} (float32 with AdamW) and gets {asked.memory:g}",
            "Take --engine upstream or a smaller model, or raise job.memory of the stage",
        )
