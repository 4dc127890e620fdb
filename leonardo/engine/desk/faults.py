"""Faults injected on purpose, for control runs: a gate that passes them too proves nothing.

None is on by default. What is on stands in the run's pins and in every step record. A learning rate of 0, the control
of the update criterion, is an ordinary setting.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from threading import Lock
from typing import TYPE_CHECKING

from leonardo.errors import InfrastructureError, InputError
from leonardo.rollout.episode import Rollout
from leonardo.rollout.episodes import StartsAhead
from leonardo.rollout.sandboxes import MakeBackend
from leonardo.sandbox.backend import SandboxBackend
from leonardo.tasks.task import Task

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Faults:
    """What is injected.

    Attributes:
        shuffled_rewards: the rewards of a round of rollouts change places at random; everything else stays, and nothing
            can be learnt from them.
        failing_sandboxes: share of sandboxes, from 0 to 1, that cannot be had when an episode resets; the episode tries
            others, as it always does.
        nan_gradient_at: the learner step at which an element of a gradient becomes NaN; 0 for never.
    """

    shuffled_rewards: bool = False
    failing_sandboxes: float = 0.0
    nan_gradient_at: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.failing_sandboxes <= 1:
            raise InputError(f"failing_sandboxes is {self.failing_sandboxes}", "Give a share from 0 to 1")

    @property
    def injected(self) -> list[str]:
        """Those that are on, as ``name=value``."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return [f"{name}={value}" for name, value in values.items() if value]

    def shuffle(self, rollouts: Sequence[Rollout], seed: str) -> list[Rollout]:
        """``rollouts`` with the rewards of those that have one dealt out anew."""
        if not self.shuffled_rewards:
            return list(rollouts)
        rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
        dealt = iter(Random(f"{seed} shuffled rewards").sample(rewards, len(rewards)))
        return [rollout if rollout.reward is None else replace(rollout, reward=next(dealt)) for rollout in rollouts]

    def sandboxes(self, make_backend: MakeBackend, seed: int) -> MakeBackend:
        """``make_backend``, of which a share of calls fails."""
        return FailingSandboxes(make_backend, self.failing_sandboxes, seed) if self.failing_sandboxes else make_backend

    def spoil_gradient(self, model: "nn.Module", step: int) -> None:
        """At the step that is named, make an element of the last parameter's gradient NaN."""
        if step == self.nan_gradient_at:
            (*_, gradient) = (weight.grad for weight in model.parameters() if weight.grad is not None)
            gradient.view(-1)[0] = math.nan


class FailingSandboxes:
    """A :data:`MakeBackend` that raises InfrastructureError for a share of its calls, chosen by ``seed``.

    Attributes:
        asked, failed: how many calls there were, and how many of them failed.
    """

    def __init__(self, make_backend: MakeBackend, share: float, seed: int) -> None:
        self._make_backend = make_backend
        self._share = share
        self._random = Random(f"{seed} failing sandboxes")
        self._lock = Lock()
        self.asked = self.failed = 0

    def __call__(self, task: Task) -> SandboxBackend:
        # episodes ask from threads: which of them draws a failure is a matter of time, as with a real one
        with self._lock:
            fails = self._random.random() < self._share
            self.asked += 1
            self.failed += fails
        if fails:
            raise InfrastructureError("injected: no sandbox", "A control run asked for it")
        return self._make_backend(task)

    def prefetch(self, tasks: Sequence[Task]) -> None:
        """As the sandboxes' own."""
        if isinstance(self._make_backend, StartsAhead):
            self._make_backend.prefetch(tasks)
