"""Faults injected on purpose, for control runs: a gate that passes them too proves nothing.

None is on by default. What is on stands in the run's pins and in every step record. A learning rate of 0, the control
of the update criterion, is an ordinary setting.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from random import Random
from threading import Lock
from typing import TYPE_CHECKING, Any, NoReturn

from leonardo.errors import InfrastructureError, InputError
from leonardo.rollout.episode import AnyTask, Environment, EpisodeSettings, Rollout
from leonardo.rollout.episodes import MakesEnvironments, StartsAhead
from leonardo.rollout.sandboxes import MakeBackend
from leonardo.sandbox.backend import SandboxBackend
from leonardo.tasks.task import Task

if TYPE_CHECKING:
    from torch import nn

Worlds = MakeBackend | MakesEnvironments


@dataclass(frozen=True)
class Faults:
    """What is injected.

    Attributes:
        shuffled_rewards: the rewards of a round of rollouts change places at random; everything else stays, and nothing
            can be learnt from them.
        failing_sandboxes: share of sandboxes, from 0 to 1, that cannot be had when an episode resets; the episode tries
            others, as it always does. Of another kind of environment, the share that cannot begin; no other is tried.
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

    def sandboxes(self, worlds: Worlds, seed: int) -> Worlds:
        """``worlds``, of which a share fails."""
        if not self.failing_sandboxes:
            return worlds
        kind = FailingEnvironments if isinstance(worlds, MakesEnvironments) else FailingSandboxes
        return kind(worlds, self.failing_sandboxes, seed)

    def spoil_gradient(self, model: "nn.Module", step: int) -> None:
        """At the step that is named, make an element of the last parameter's gradient NaN."""
        if step == self.nan_gradient_at:
            (*_, gradient) = (weight.grad for weight in model.parameters() if weight.grad is not None)
            gradient.view(-1)[0] = math.nan


class _Failing:
    """Draws, by ``seed``, which of what ``worlds`` is asked for fails.

    Attributes:
        asked, failed: how often it was asked, and how much of that failed.
    """

    def __init__(self, worlds: Any, share: float, seed: int) -> None:
        self._worlds = worlds
        self._share = share
        self._random = Random(f"{seed} failing sandboxes")
        self._lock = Lock()
        self.asked = self.failed = 0

    def _fails(self) -> bool:
        # episodes ask from threads: which of them draws a failure is a matter of time, as with a real one
        with self._lock:
            fails = self._random.random() < self._share
            self.asked += 1
            self.failed += fails
        return fails


class FailingSandboxes(_Failing):
    """A :data:`MakeBackend` that raises InfrastructureError for a share of its calls."""

    def __call__(self, task: Task) -> SandboxBackend:
        if self._fails():
            raise _injected()
        return self._worlds(task)

    def prefetch(self, tasks: Sequence[Task]) -> None:
        """As the sandboxes' own."""
        if isinstance(self._worlds, StartsAhead):
            self._worlds.prefetch(tasks)


class FailingEnvironments(_Failing):
    """A :class:`MakesEnvironments`; a share of its environments raise InfrastructureError when they begin."""

    def environment(self, task: AnyTask, settings: EpisodeSettings) -> Environment:
        """See the protocol."""
        environment: Environment = self._worlds.environment(task, settings)
        if self._fails():
            environment.reset = _cannot_begin  # type: ignore[method-assign]
        return environment


def _cannot_begin() -> NoReturn:
    raise _injected()


def _injected() -> InfrastructureError:
    return InfrastructureError("injected: no sandbox", "A control run asked for it")
