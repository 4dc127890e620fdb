"""Whether a study can run here: models, package and room, told all at once and before tasks are prepared."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from leonardo.engine.desk.checkpoints import KEPT
from leonardo.engine.desk.policy import load_pretrained
from leonardo.errors import InputError
from leonardo.functions.checkers import package_folder
from leonardo.jobs.space import require_room
from leonardo.rollout.families import load_family
from leonardo.site import Site
from leonardo.stages.definition import load_model
from leonardo.stages.start import pretrained
from leonardo.stages.transferfile import KINDS, Transfer, learner_of

_WEIGHTS, _CHECKPOINT = 4, 12
"""Bytes a parameter: float32, and in a checkpoint the optimizer's two moments besides."""

_DESK_PARAMETERS = 600_000
"""Of a policy that is made from nothing."""


def require_startable(stage: Transfer, site: Site) -> dict[str, int]:
    """Parameters of each model, all of which are there and can be read; so is the package.

    Raises InputError that names everything that is missing.
    """
    parameters, missing = {}, []
    for name in stage.models:
        try:
            parameters[name] = _parameters(stage, name, site)
        except InputError as error:
            missing.append(error)
    try:
        package_folder()
    except InputError as error:
        missing.append(error)
    if missing:
        raise _joined(missing)
    return parameters


def require_room_for(stage: Transfer, parameters: Mapping[str, int], run_folders: Sequence[Path], site: Site) -> None:
    """Raise InputError where policies and checkpoints that are still to be written do not fit on the disk."""
    models = enumerate(parameters.items())
    whole = sum(_trained_bytes(stage, name, count, first=number == 0) for number, (name, count) in models)
    trained = warm = 0.0
    for folder in run_folders:
        trained += max(0.0, whole - sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))
        # a model that has a folder was trained from its warm start already
        warm += sum(
            count * _WEIGHTS for name, count in parameters.items() if not (folder / load_model(name).name).is_dir()
        )
    require_room({run_folders[0]: trained, site.cache: warm}, f"the study {stage.name}")


def _trained_bytes(stage: Transfer, name: str, parameters: int, *, first: bool) -> float:
    """What the trainings of a model leave; the first model has the control, too."""
    of_model = stage.with_model(load_model(name))
    learners = [learner_of(stage, of_model, kind) for kind in KINDS]
    if first:
        learners += [learner_of(stage, of_model, stage.control.kind, stage.control.desk)] * stage.control.trainings
    kept = [KEPT + 1 if learner.checkpoint_every else 0 for learner in learners]  # one more while it is written
    return parameters * sum(_WEIGHTS + count * _CHECKPOINT for count in kept)


def _parameters(stage: Transfer, name: str, site: Site) -> int:
    model = load_model(name)
    if (folder := pretrained(model, site)) is None:
        return _DESK_PARAMETERS
    loaded = load_pretrained(folder, load_family(model.family), stage.listing)
    return sum(weight.numel() for weight in loaded.model.parameters())


def _joined(errors: Sequence[InputError]) -> InputError:
    parts = ("; ".join(dict.fromkeys(part)) for part in zip(*((each.what, each.hint) for each in errors), strict=True))
    return InputError(*parts)
