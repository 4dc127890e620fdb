"""Training in a process of its own, on tasks whose reward hangs on nothing but what the policy says."""

from pathlib import Path

import torch

from leonardo.assets.store import AssetStore
from leonardo.engine.desk.config import LearnerConfig
from leonardo.engine.desk.learner import train
from leonardo.rollout.episode import EpisodeSettings
from leonardo.rollout.prompts import SUBMIT_COMMAND
from leonardo.sandbox.drivers import open_driver
from leonardo.site import load_site
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files

CONFIG = LearnerConfig(
    steps=5,
    groups=2,
    group_size=4,
    wanted_groups=1,
    rounds=2,
    learning_rate=1e-3,
    episode=EpisodeSettings(steps=2, turn_tokens=40, live=8, threads=4),
)
SEED = 3
GOOD, BAD = f"touch /done && {SUBMIT_COMMAND}", SUBMIT_COMMAND
"""What solves a task, and what does not; a policy that imitates both is the start."""


def tasks(count: int = 4, kind: str = "arm") -> list[Task]:
    """Tasks that differ in a word of their instruction."""
    return [
        Task(
            id=f"{kind}-{number}",
            definition="Bootstrap: docker\nFrom: ubuntu:22.04\n%post\ntrue\n",
            instruction=f"Go {number}.",
            tests=verifier_files("#!/bin/bash\n[[ -e /done ]]\n"),
            kind=kind,
        )
        for number in range(count)
    ]


def train_alone(site: Path, policy: Path, run: Path, config: LearnerConfig = CONFIG) -> None:
    """Train, or go on training, in this process; what it has to say goes to ``<run>.said``."""
    torch.set_num_threads(1)

    def say(line: str) -> None:
        with run.with_name(f"{run.name}.said").open("a") as stream:
            stream.write(f"{line}\n")

    settings = load_site(site)
    with open_driver() as driver:
        store = AssetStore(settings.cache / "assets", driver, settings)
        train(
            config, policy, tasks(), run, SEED,
            lambda task: driver.backend(store.prepared(task).stack), resume=True, say=say,
        )  # fmt: skip
