"""What a model starts from: where it lies, and whether a job of the desk engine can hold it."""

from collections.abc import Iterator
from pathlib import Path

from leonardo.errors import InputError
from leonardo.hooks.sources import find
from leonardo.jobs.arithmetic import desk_memory
from leonardo.jobs.findings import Finding
from leonardo.jobs.offline import pin_findings
from leonardo.jobs.plan import Resources
from leonardo.site import Site
from leonardo.stages.definition import Model


def pretrained(model: Model, site: Site) -> Path | None:
    """What the model starts from: it lies among the site's models, or where its name says.

    None for a policy that is made from nothing. Raises InputError where it is not on this machine, not whole, or says
    that it is another than the model file asks for (:func:`leonardo.jobs.offline.pin_findings`).
    """
    if model.start == "desk":
        return None
    for finding in _pins(model, site):
        raise InputError(finding.what, finding.remedy)
    place = site.models / model.folder
    if place.is_dir():
        return find(str(place))
    what = f"the model {model.start} is not on this machine: none in the hub's cache"
    try:
        if (found := find(model.start, model.revision or None)) is not None:
            return found
    except InputError as error:
        what = error.what
    raise InputError(
        f"{what}; no folder {place}", "Bring it to that folder: hf download --local-dir, or make bundle and unbundle"
    )


def start_findings(model: Model, site: Site) -> Iterator[Finding]:
    """A pretrained model that is not there, or is another: a warm start would end over it."""
    if wrong := [*_pins(model, site)]:
        yield from wrong
        return
    try:
        pretrained(model, site)
    except InputError as error:
        yield Finding("offline.model", f"model {model.name}: {error.what}", error.hint)


def _pins(model: Model, site: Site) -> Iterator[Finding]:
    """What is wrong with the folder by its pin.json; the hub's cache is asked for the revision itself."""
    if model.start == "desk":
        return
    if (place := site.models / model.folder).is_dir():
        yield from pin_findings(place, model.name, model.start, model.revision)
    elif Path(model.start).is_dir():  # which a person named itself, whatever it was called on the hub
        yield from pin_findings(Path(model.start), model.name, "", model.revision)


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
