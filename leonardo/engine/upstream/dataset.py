"""Tasks as upstream's trainer reads them: a data set folder, and the task data beside it.

A row's prompt is its instruction; the system prompt comes from a file by flag, as in the reference scripts. Its image
is the prepared state, so that a reset needs no set-up; its tests stay outside of the sandbox until the submission.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from leonardo.files import write_atomic
from leonardo.rollout.prompts import SYSTEM_PROMPT
from leonardo.tasks.task import Task

ENVIRONMENT = "swerl_vanillux_sandbox"
"""Upstream's environment with the reference harness."""

WRITTEN = "pins.json"
"""Beside the data set: what it was written from."""

_CARD = """\
---
configs:
- config_name: default
  data_files:
  - split: train
    path: train.jsonl
---
Terminal tasks with prepared states, written by tmax-leonardo.
"""


@dataclass(frozen=True)
class Dataset:
    """Where everything is: the data set's folder, the task data's, and the file with the system prompt."""

    folder: Path
    task_data: Path
    system_prompt: Path


def dataset_in(place: Path) -> Dataset:
    """The data set that was written below ``place``."""
    return Dataset(place / "dataset", place / "task-data", place / "system-prompt.txt")


def write_dataset(place: Path, tasks: Sequence[Task], images: Mapping[str, str], max_steps: int) -> Dataset:
    """Write ``tasks`` below ``place``.

    Args:
        images: task id -> ``prepared://<digest>``.
        max_steps: tool calls that an episode may take.
    """
    rows = [
        {
            "messages": [{"role": "user", "content": task.instruction}],
            "ground_truth": task.id,
            "dataset": "passthrough",  # the reward is the environment's
            "env_config": {
                "max_steps": max_steps,
                "family": task.kind,  # for the step records
                "env_configs": [
                    {"env_name": ENVIRONMENT, "is_text_env": False, "task_id": task.id, "image": images[task.id]}
                ],
            },
        }
        for task in tasks
    ]
    dataset = dataset_in(place)
    write_atomic(dataset.folder / "train.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    write_atomic(dataset.folder / "README.md", _CARD)
    write_atomic(dataset.system_prompt, SYSTEM_PROMPT)
    for task in tasks:
        write_atomic(dataset.task_data / task.id / "instruction.md", task.instruction)
        for folder, files in (("tests", task.tests), ("environment/seeds", task.seeds)):
            for name, content in files.items():
                write_atomic(dataset.task_data / task.id / folder / PurePosixPath(name), content)
    return dataset
