"""The learner: seven steps, in the order in which the recipe names them.

1. Sample groups of rollouts with the rollout policy.   2. Parse, act, verify: a binary reward each.
3. Leave out infrastructure failures, drop groups too small and groups without variance; sample again if few are left.
4. Advantages: reward minus the group's mean.           5. DPPO: ratio to the rollout policy, masked trust region.
6. Hand the weights over to the rollout policy.         7. Record the step, and repeat.

Nothing draws from a global random stream: every draw is a function of the run's seed, the step, and what is drawn.
"""

import copy
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from accelerate import Accelerator

from leonardo.engine.desk.checkpoints import read_checkpoint, write_checkpoint
from leonardo.engine.desk.config import LearnerConfig
from leonardo.engine.desk.faults import Worlds
from leonardo.engine.desk.policy import load_policy, save_policy
from leonardo.engine.desk.rundescription import begin_run, description
from leonardo.engine.desk.sampler import Sampler
from leonardo.engine.desk.summary import summarize
from leonardo.engine.desk.update import Learner, digest_of_weights
from leonardo.errors import InputError, LeonardoError, NotFiniteError
from leonardo.evaluation.evaluate import attempt_seed
from leonardo.gates.steps import StepRecord, append_record, keep_records
from leonardo.rollout.episode import Rollout
from leonardo.rollout.episodes import run_rollouts
from leonardo.tasks.task import Task

STEPS_FILE, POLICY_FOLDER, CHECKPOINT_FOLDER = "steps.jsonl", "policy", "checkpoints"
_LEAST_VALID = 2


def train(
    config: LearnerConfig,
    policy_folder: Path,
    tasks: Sequence[Task],
    run_folder: Path,
    seed: int,
    make_backend: Worlds,
    on_step: Callable[[StepRecord], object] = lambda record: None,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Path:
    """Improve a policy by DPPO.

    Args:
        config: of the learner.
        policy_folder: the Hugging Face folder to begin with.
        tasks: training tasks, prepared.
        run_folder: gets ``config.json``, a line a step in ``steps.jsonl``, ``checkpoints/`` to resume from, and the
            trained policy in ``policy/``.
        seed: of the order of tasks and of all sampling.
        make_backend: gives a sandbox for a task, or makes the environments of another kind of task.
        on_step: called with each record once it is written; where it returns True the run ends after that step.
        resume: go on with the run in ``run_folder`` after its last whole checkpoint, from the start where it has none;
            the end is the same, bit for bit, as that of a run which was never interrupted.
        say: gets a line where a run is resumed and where a checkpoint is damaged.

    Returns:
        The trained policy's Hugging Face folder.

    Raises:
        InputError: no tasks; a run is there and ``resume`` is not asked for; or it is another run.
        NotFiniteError: a loss, gradient or weight is not finite. No checkpoint is written of it or after it.
    """
    if not tasks:
        raise InputError("no tasks to train on", "Give at least one")
    records, checkpoints = run_folder / STEPS_FILE, run_folder / CHECKPOINT_FOLDER
    loaded = load_policy(policy_folder)
    base = digest_of_weights(loaded.model.state_dict())
    begin_run(run_folder, description(config, policy_folder, base, tasks, seed), resume=resume)
    done, state = (read_checkpoint(checkpoints, say) if resume else None) or (0, None)
    keep_records(records, done)
    accelerator = Accelerator()
    learner = Learner(config, loaded.model, accelerator)
    order = TaskOrder(tasks, seed)
    if state is not None:
        learner.take_state(state["learner"])
        order.take(state["tasks_taken"])
        say(f"resumed after step {done} of {config.steps}")
    sampler = Sampler(copy.deepcopy(learner.model), loaded.tokenizer, accelerator.device)
    make_backend = config.faults.sandboxes(make_backend, seed)
    for step in range(done + 1, config.steps + 1):
        record = run_step(step, config, learner, sampler, order, seed, make_backend)
        append_record(records, record)
        if record.non_finite:
            raise NotFiniteError(
                step, record.non_finite, f"The weights of the step before are in force; see {run_folder / STEPS_FILE}"
            )
        if config.checkpoint_every and (step % config.checkpoint_every == 0 or step == config.steps):
            write_checkpoint(checkpoints, step, {"learner": learner.state(), "tasks_taken": order.taken})
        if on_step(record) is True:
            break
    return save_policy(run_folder / POLICY_FOLDER, learner.model, loaded.tokenizer)


def run_step(
    step: int,
    config: LearnerConfig,
    learner: "Learner",
    sampler: Sampler,
    order: "TaskOrder",
    seed: int,
    make_backend: Worlds,
) -> StepRecord:
    """One learner step."""
    started = time.perf_counter()
    groups = Groups()
    attempts: Counter[str] = Counter()  # a task that comes twice in a step is not sampled twice with the same seeds
    for number in range(config.rounds):
        plan = []
        for task in order.take(config.groups):
            for _ in range(config.group_size):
                plan.append((task, attempt_seed(seed, f"{step}:{task.id}", attempts[task.id])))
                attempts[task.id] += 1
        numbers = [len(groups.sampled) + index // config.group_size for index in range(len(plan))]
        rollouts = list(
            run_rollouts(
                sampler, [task for task, _ in plan], [drawn for _, drawn in plan], make_backend, config.episode, numbers
            )
        )
        rollouts = config.faults.shuffle(rollouts, f"{seed}:{step}:{number}")
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
    return summarize(step, groups, update, digest, times, config.faults.injected)


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


class TaskOrder:
    """Tasks in random order, all of them before any comes again.

    Attributes:
        taken: how many were; with tasks and seed it is the whole state, for that many taken at once lead to it.
    """

    def __init__(self, tasks: Sequence[Task], seed: int) -> None:
        self._tasks = tasks
        self._random = Random(f"{seed} tasks")
        self._queue: list[Task] = []
        self.taken = 0

    def take(self, count: int) -> list[Task]:
        """The next ``count`` tasks."""
        while len(self._queue) < count:
            self._queue += self._random.sample(self._tasks, len(self._tasks))
        taken, self._queue = self._queue[:count], self._queue[count:]
        self.taken += count
        return taken
