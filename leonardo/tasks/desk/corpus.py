"""Generation: seeded draws of instances, split by a hash of their parameters, as tasks and as rows."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Literal

from leonardo.errors import InputError
from leonardo.files import digest_of, write_atomic
from leonardo.tasks.desk.places import PLACES
from leonardo.tasks.desk.scene import Commands, Family, Scene
from leonardo.tasks.desk.texts import TEXTS
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files

Split = Literal["train", "held-out"]
Kind = Literal["right", "partial", "wrong"]

FAMILIES: tuple[Family, ...] = TEXTS + PLACES
HELD_OUT_SHARE = 3  # one instance in so many is held out


@dataclass(frozen=True)
class Attempt:
    """A command sequence for a task (without the submission): one that passes, stops early, or is mistaken."""

    commands: Commands
    kind: Kind


@dataclass(frozen=True)
class DeskTask:
    """An instance of a family: the task, its row, and demonstrations good and bad."""

    id: str
    family: str
    instruction: str
    scene: Scene

    @property
    def solution(self) -> Commands:
        """The reference commands, without the submission."""
        return self.scene.solution

    @property
    def row(self) -> dict[str, str]:
        """The row of the data set."""
        return {
            "task_id": self.id,
            "description": self.instruction,
            "container_def": self.scene.definition,
            "test_final_state": self.scene.verifier,
            "kind": self.family,
            "reference_solution": "\n".join(["#!/bin/bash", *self.solution]) + "\n",
        }

    @cached_property
    def task(self) -> Task:
        """The row as a task: the same that the row reader makes of it."""
        row = self.row
        return Task(
            id=row["task_id"],
            instruction=row["description"],
            definition=row["container_def"],
            tests=verifier_files(row["test_final_state"]),
            kind=row["kind"],
            reference_solution=row["reference_solution"],
        )

    def attempts(self, random: Random) -> list[Attempt]:
        """Every demonstration this task has, in random order."""
        kinds: dict[Kind, tuple[Commands, ...]] = {
            "right": (self.scene.solution, *self.scene.right),
            "partial": self.scene.partial,
            "wrong": self.scene.wrong,
        }
        every = [Attempt(commands, kind) for kind, sequences in kinds.items() for commands in sequences]
        return random.sample(every, len(every))

    def attempt(self, random: Random, right: float = 0.4, partial: float = 0.15) -> Attempt:
        """One demonstration: right or partial with these probabilities, else wrong."""
        point = random.random()
        kind = "right" if point < right else "partial" if point < right + partial else "wrong"
        return next(attempt for attempt in self.attempts(random) if attempt.kind == kind)


def generate(split: Split, count: int, seed: int, families: Sequence[str] | None = None) -> list[DeskTask]:
    """``count`` distinct tasks of ``split``, dealt out evenly over ``families`` (by default all).

    The same arguments give the same tasks everywhere, and a smaller count gives a prefix of a larger one.
    """
    chosen = [_named(name) for name in families] if families else list(FAMILIES)
    if split not in ("train", "held-out"):
        raise InputError(f"No split {split!r} of the desk tasks", "Use 'train' or 'held-out'")
    streams = [Random(f"{seed} {split} {family.name}") for family in chosen]
    tasks: dict[str, DeskTask] = {}
    for index in range(count):
        family, stream = chosen[index % len(chosen)], streams[index % len(chosen)]
        # a family holds far more than its share of any sensible count, so that few draws are repeats
        for _ in range(1000):
            task = instance(family, family.draw(stream))
            if split_of(task.id) == split and task.id not in tasks:
                tasks[task.id] = task
                break
        else:
            raise InputError(
                f"{count} {split} desk tasks are too many: {family.name} has {family.instances} instances in all",
                "Ask for fewer",
            )
    return list(tasks.values())


def instance(family: Family, values: dict[str, str]) -> DeskTask:
    """The task of ``family`` with these words. All else about it (filler, phrasing) follows from them."""
    digest = digest_of([family.name, values])
    random = Random(int(digest, 16))
    scene = family.build(random, **values)
    return DeskTask(f"desk-{family.name}-{digest[:8]}", family.name, random.choice(scene.phrasings) + ".", scene)


def split_of(task_id: str) -> Split:
    """The split of a task, by the hash in its id."""
    return "held-out" if int(task_id[-8:], 16) % HELD_OUT_SHARE == 0 else "train"


def write_rows(path: Path, tasks: Sequence[DeskTask]) -> None:
    """Write the tasks as JSONL rows in the data set's shape, whole or not at all."""
    write_atomic(path, "".join(json.dumps(task.row) + "\n" for task in tasks))


def describe() -> list[dict[str, str | int | bool]]:
    """A line a family: its name, how many instances there are, commands of the reference, and an example."""
    examples = generate("train", len(FAMILIES), seed=0)
    return [
        {
            "family": family.name,
            "instances": family.instances,
            "commands": len(example.solution),
            "needs look": family.needs_look,
            "example": example.instruction,
        }
        for family, example in zip(FAMILIES, examples, strict=True)
    ]


def _named(name: str) -> Family:
    for family in FAMILIES:
        if family.name == name:
            return family
    raise InputError(f"No desk family {name!r}", f"There are {', '.join(family.name for family in FAMILIES)}")
