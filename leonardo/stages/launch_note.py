"""What a job of upstream's trainer keeps for its verdict: stage and model as they were, pins, what opened it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leonardo.errors import InputError
from leonardo.files import digest_of, read_json, write_atomic, write_json
from leonardo.jobs.offline import pinned
from leonardo.jobs.plan import JobPlan
from leonardo.stages.asked import Asked, UpstreamPlace
from leonardo.stages.climb import pins_of
from leonardo.stages.definition import Model, Stage
from leonardo.stages.launch_basis import Ground

SUBMITTED, PACKAGES = "submitted.json", "environment-upstream.txt"


@dataclass(frozen=True)
class Note:
    """What was submitted, read back."""

    asked: Asked
    stage: Stage
    model: Model
    pins: dict[str, Any]
    ground: Ground


def note_stage(plan: JobPlan, asked: Asked, ground: Ground) -> None:
    """Write it into the run's folder, with the packages of upstream's environment."""
    stage, model = asked.stage_and_model()
    pins = pins_of(asked, None) | {"base_policy": checkpoint_pins(Path(plan.pins["model_folder"]))}
    note = {
        "asked": {**asdict(asked), "place": {"tree": str(asked.place.tree), "python": str(asked.place.python)}},
        "stage": stage.model_dump(mode="json"),
        "model": model.model_dump(mode="json"),
        "pins": pins,
        "ground": ground.as_json(),
    }
    write_json(plan.folder / SUBMITTED, note)
    write_atomic(plan.folder / PACKAGES, "".join(f"{line}\n" for line in installed(asked.place.environment)))


def read_note(folder: Path) -> Note | None:
    """What was noted; None where the job is none of upstream's trainer. Raises InputError where it was edited."""
    try:
        note = read_json(folder / SUBMITTED)
        place = UpstreamPlace(Path(note["asked"]["place"]["tree"]), Path(note["asked"]["place"]["python"]))
        return Note(
            Asked(**{**note["asked"], "place": place}),
            Stage.model_validate(note["stage"]),
            Model.model_validate(note["model"]),
            dict(note["pins"]),
            Ground(**note["ground"]),
        )
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{folder / SUBMITTED} cannot be read", "It was edited, or is of another version") from error


def checkpoint_pins(folder: Path) -> dict[str, str]:
    """Names a checkpoint without reading its weights: the revision that was brought, its files and their sizes."""
    files = sorted((path.name, path.stat().st_size) for path in folder.glob("*") if path.is_file())
    return {"revision": pinned(folder).revision, "files": digest_of([list(entry) for entry in files])}


def installed(environment: Path) -> list[str]:
    """The packages of an environment, ``name==version``, sorted."""
    found = environment.glob("lib/python*/site-packages/*.dist-info")
    names = (path.name.removesuffix(".dist-info").rpartition("-") for path in found)
    return sorted(f"{name.lower().replace('_', '-')}=={version}" for name, _, version in names)
