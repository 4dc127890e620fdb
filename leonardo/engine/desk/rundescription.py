"""What decides a training run, written down at its start (``config.json``): it can be resumed as itself only."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from leonardo.engine.desk.config import LearnerConfig, settings_of
from leonardo.errors import InputError
from leonardo.files import write_json
from leonardo.tasks.task import Task

CONFIG_FILE = "config.json"
_MAY_DIFFER = ("steps", "checkpoint_every")
"""Settings of the learner that decide no step: a run may be resumed to go further than it was asked at first."""


def description(
    config: LearnerConfig, policy_folder: Path, base: str, tasks: Sequence[Task], seed: int
) -> dict[str, Any]:
    """The description of a run, as JSON; ``base`` is the digest of the weights it begins with."""
    value = {
        "learner": settings_of(config),
        "seed": seed,
        "policy": str(policy_folder),
        "base": base,
        "tasks": [task.id for task in tasks],
        "task_digests": [task.digest for task in tasks],
    }
    plain: dict[str, Any] = json.loads(json.dumps(value))
    return plain


def begin_run(run_folder: Path, described: Mapping[str, Any], *, resume: bool) -> None:
    """Write the description of a run, or see that the one to be resumed is this one.

    Raises:
        InputError: there is a run and it is not to be resumed, or it is another; says in which setting.
    """
    path = run_folder / CONFIG_FILE
    if path.exists():
        if not resume:
            raise InputError(f"{run_folder} holds a run already", "Name another run folder, or resume it")
        try:
            there = json.loads(path.read_text(encoding="utf-8"))
            differs = _first_difference(there, described)
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"{path} describes no run", "It was edited: begin another run") from error
        if differs:
            raise InputError(f"{run_folder} is another run: {differs} differs", "Resume it with what it began with")
    write_json(path, dict(described))


def _first_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    flat = [
        {**value, **{f"learner.{name}": each for name, each in value["learner"].items()}} for value in (there, here)
    ]
    passed_over = {"learner", "policy", *(f"learner.{name}" for name in _MAY_DIFFER)}
    names = [name for name in {**flat[0], **flat[1]} if name not in passed_over]
    return next((name for name in names if flat[0].get(name) != flat[1].get(name)), None)
