"""What every evaluation of rows begins with: their prepared states, and which of the rows are this process's part."""

from collections.abc import Sequence
from dataclasses import dataclass

from leonardo.assets.manifest import ManifestEntry, manifest_digest
from leonardo.assets.progress import BuildProgress
from leonardo.assets.store import AssetStore
from leonardo.errors import InputError
from leonardo.evaluation.evaluate import tasks_digest
from leonardo.evaluation.parts import positions_of
from leonardo.evaluation.records import Part
from leonardo.tasks.task import Task


@dataclass(frozen=True)
class Piece:
    """A part of the rows, or all: tasks, what their prepared states are named by, and which part it is."""

    tasks: list[Task]
    assets: str
    part: Part | None


def entries_of(
    store: AssetStore, tasks: Sequence[Task], bar: BuildProgress, *, jobs: int = 2, verify: bool = False
) -> list[ManifestEntry]:
    """What all tasks were built into. What is not there is built, by one process while others wait.

    Args:
        verify: look at what is there, too, and build again what is damaged.

    Raises:
        InputError: a task that cannot be prepared.
    """
    found = [None if verify else store.entry(task) for task in tasks]
    entries = [entry for entry in found if entry is not None]
    if len(entries) < len(tasks):
        entries = store.build(tasks, jobs=jobs, progress=bar)
    if failed := [entry for entry in entries if entry.failure is not None]:
        raise InputError(
            f"{len(failed)} of {len(tasks)} tasks cannot be prepared, such as {failed[0].task_id} "
            f"({failed[0].failure}: {failed[0].set_up.reason})",
            "Select others; leonardo audit writes the ids of those that serve",
        )
    return entries


def piece_of(tasks: Sequence[Task], entries: Sequence[ManifestEntry], number: int, count: int) -> Piece:
    """Part ``number`` (from 1) of ``count``; one part is the whole. Raises InputError where there are too few tasks."""
    if count == 1:
        return Piece(list(tasks), manifest_digest(entries), None)
    places = positions_of(number, count, len(tasks))
    whole = {"tasks": tasks_digest(tasks), "assets": manifest_digest(entries)}
    part = Part(number=number, count=count, positions=places, total=len(tasks), whole=whole)
    return Piece([tasks[place] for place in places], manifest_digest([entries[place] for place in places]), part)
