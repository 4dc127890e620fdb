"""Demonstrations: right, partial and wrong attempts, acted out in the real sandbox through the real harness."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from leonardo.errors import InfrastructureError
from leonardo.rollout.chat import Chat
from leonardo.rollout.episodes import HarnessRules, TurnSample, run_rollouts
from leonardo.rollout.prompts import SUBMIT_COMMAND
from leonardo.rollout.rollout import Rollout
from leonardo.rollout.tool_calls import render_tool_call
from leonardo.sandbox.backend import SandboxBackend
from leonardo.tasks.desk import DeskTask
from leonardo.tasks.task import Task


@dataclass(frozen=True)
class DemonstrationMix:
    """What the warm start sees.

    Attributes:
        attempts: a task.
        right, partial: shares of attempts that pass, and that stop early; the rest is wrong.
    """

    attempts: int = 4
    right: float = 0.5
    partial: float = 0.1


@dataclass(frozen=True)
class Script:
    """The turns of one demonstration."""

    task: DeskTask
    kind: str
    turns: tuple[str, ...]


def write_scripts(tasks: Sequence[DeskTask], mix: DemonstrationMix, seed: int) -> list[Script]:
    """``mix.attempts`` demonstrations a task, each ending with the submission."""
    random = Random(seed)
    scripts = []
    for task in tasks:
        for _ in range(mix.attempts):
            attempt = task.attempt(random, right=mix.right, partial=mix.partial)
            turns = tuple(render_tool_call(command) for command in (*attempt.commands, SUBMIT_COMMAND))
            scripts.append(Script(task, attempt.kind, turns))
    return scripts


class _Scripted:
    """A policy that writes the turns of scripts; the seed of a rollout is its script's number."""

    def __init__(self, scripts: Sequence[Script], chat: Chat) -> None:
        self._scripts = scripts
        self._chat = chat

    def sample(
        self, contexts: Sequence[Sequence[int]], seeds: Sequence[tuple[int, ...]], max_tokens: int
    ) -> list[TurnSample]:
        turns = [self._chat.turn_tokens(self._scripts[number].turns[turn]) for number, turn in seeds]
        return [TurnSample(tokens, [0.0] * len(tokens)) for tokens in turns]


def act_out(
    scripts: Sequence[Script],
    chat: Chat,
    make_backend: Callable[[Task], SandboxBackend],
    rules: HarnessRules,
    progress: Callable[[int, int], None] | None = None,
    batch: int = 64,
) -> list[Rollout]:
    """Run every script in a sandbox. Returns the rollouts of those that the machine did not fail, in order.

    Raises InfrastructureError where it failed more than one in ten.
    """
    sampler = _Scripted(scripts, chat)
    rollouts: list[Rollout] = []
    for begin in range(0, len(scripts), batch):
        numbers = range(begin, min(begin + batch, len(scripts)))
        tasks = [scripts[number].task.task for number in numbers]
        rollouts += run_rollouts(sampler, chat, tasks, list(numbers), make_backend, rules=rules)
        if progress:
            progress(numbers[-1] + 1, len(scripts))
    whole = [rollout for rollout in rollouts if rollout.failure is None]
    if len(whole) < 0.9 * len(rollouts):
        reason = next(rollout.reason for rollout in rollouts if rollout.failure is not None)
        raise InfrastructureError(
            f"{len(rollouts) - len(whole)} of {len(rollouts)} demonstrations failed with the machine ({reason})",
            "See what `make doctor` says of the sandboxes",
        )
    return whole
