"""The learner: seven steps, in the order in which the recipe names them.

1. Sample groups of rollouts with the rollout policy.   2. Parse, act, verify: a binary reward each.
3. Leave out infrastructure failures, drop groups too small and groups without variance; sample again if few are left.
4. Advantages: reward minus the group's mean.           5. DPPO: ratio to the rollout policy, masked trust region.
6. Hand the weights over to the rollout policy.         7. Record the step, and repeat.
"""

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from accelerate import Accelerator

from leonardo.engine.desk.config import LearnerConfig, settings_of
from leonardo.engine.desk.policy import load_policy, save_policy
from leonardo.engine.desk.sampler import Sampler
from leonardo.engine.desk.summary import summarize
from leonardo.engine.desk.update import Learner, digest_of_weights
from leonardo.errors import InputError, LeonardoError
from leonardo.evaluation.evaluate import attempt_seed
from leonardo.files import write_json
from leonardo.gates.steps import StepRecord, append_record
from leonardo.rollout.episodes import Rollout, run_rollouts
from leonardo.rollout.sandboxes import MakeBackend
from leonardo.tasks.task import Task

STEPS_FILE, CONFIG_FILE, POLICY_FOLDER = "steps.jsonl", "config.json", "policy"
_LEAST_VALID = 2


def train(
    config: LearnerConfig,
    policy_folder: Path,
    tasks: Sequence[Task],
    run_folder: Path,
    seed: int,
    make_backend: MakeBackend,
    on_step: Callable[[StepRecord], None] = lambda record: None,
) -> Path:
    """Improve a policy by DPPO.

    Args:
        config: of the learner.
        policy_folder: the Hugging Face folder to begin with.
        tasks: training tasks, prepared.
        run_folder: gets ``config.json``, a line a step in ``steps.jsonl``, and the trained policy in ``policy/``.
        seed: of the order of tasks and of all sampling.
        make_backend: gives a sandbox for a task.
        on_step: called with each record once it is written.

    Returns:
        The trained policy's Hugging Face folder.
    """
    if not tasks:
        raise InputError("no tasks to train on", "Give at least one")
    if (run_folder / STEPS_FILE).exists():
        raise InputError(f"{run_folder} holds a run already", "Name another run folder")
    write_json(
        run_folder / CONFIG_FILE,
        {"learner": settings_of(config), "seed": seed, "policy": str(policy_folder), "tasks": [t.id for t in tasks]},
    )
    loaded = load_policy(policy_folder)
    accelerator = Accelerator()
    sampler = Sampler(copy.deepcopy(loaded.model), loaded.tokenizer, accelerator.device)
    learner = Learner(config, loaded.model, accelerator)
    order = _TaskOrder(tasks, seed)
    for step in range(1, config.steps + 1):
        record = run_step(step, config, learner, sampler, order, seed, make_backend)
        append_record(run_folder / STEPS_FILE, record)
        if record.non_finite:
            raise LeonardoError(
                f"step {step}: not finite: {', '.join(record.non_finite[:5])}",
                f"The weights of the step before are in force; see {run_folder / STEPS_FILE}",
            )
        on_step(record)
    return save_policy(run_folder / POLICY_FOLDER, learner.model, loaded.tokenizer)


def run_step(
    step: int,
    config: LearnerConfig,
    learner: "Learner",
    sampler: Sampler,
    order: "_TaskOrder",
    seed: int,
    make_backend: MakeBackend,
) -> StepRecord:
    """One learner step."""
    started = time.perf_counter()
    groups = Groups()
    for _ in range(config.rounds):
        chosen = order.take(config.groups)
        plan = [(task, attempt_seed(seed, f"{step}:{task.id}", n)) for task in chosen for n in range(config.group_size)]
        numbers = [len(groups.sampled) + index // config.group_size for index in range(len(plan))]
        rollouts = list(
            run_rollouts(
                sampler, [task for task, _ in plan], [drawn for _, drawn in plan], make_backend, config.episode, numbers
            )
        )
        groups.add([rollouts[at : at + config.group_size] for at in range(0, len(rollouts), config.group_size)])
        if len(groups.kept) >= config.wanted_groups:
            break
    sampled = time.perf_counter()
    update = learner.update(groups.kept, step)
    updated = time.perf_counter()
    weights = learner.weights()
    sampler.take_weights(weights)
    digest = digest_of_weights(sampler.model.state_dict())
    if digest != digest_of_weights(weights):
        raise LeonardoError(f"step {step}: the rollout policy did not get the learner's weights", "This is a fault")
    now = time.perf_counter()
    times = {
        "rollout": sampled - started,
        "sandbox": sum(rollout.times.total for group in groups.sampled for rollout in group),
        "update": updated - sampled,
        "hand_over": now - updated,
        "step": now - started,
    }
    return summarize(step, groups, update, digest, times)


@dataclass
class Groups:
    """What a step sampled, and what of it is trained on.

    Attributes:
        sampled: all groups.
        kept: groups with variance, without their infrastructure failures.
        zero_variance: how many were dropped because all their valid rewards are the same.
        too_small: how many were dropped because fewer than two rewards are valid.
    """

    sampled: list[list[Rollout]] = field(default_factory=list)
    kept: list[list[Rollout]] = field(default_factory=list)
    zero_variance: int = 0
    too_small: int = 0

    def add(self, groups: Sequence[list[Rollout]]) -> None:
        """Sort ``groups`` in."""
        for group in groups:
            self.sampled.append(group)
            valid = [rollout for rollout in group if rollout.reward is not None]
            if len(valid) < _LEAST_VALID:
                self.too_small += 1
            elif len({rollout.reward for rollout in valid}) == 1:
                self.zero_variance += 1
            else:
                self.kept.append(valid)


class _TaskOrder:
    """Tasks in random order, all of them before any comes again."""

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        self._tasks = tasks
        self._random = Random(f"{seed} tasks")
        self._queue: list[Task] = []

    def take(self, count: int) -> list[Task]:
        """The next ``count`` tasks."""
        while len(self._queue) < count:
            self._queue += self._random.sample(self._tasks, len(self._tasks))
        taken, self._queue = self._queue[:count], self._queue[count:]
        return taken
