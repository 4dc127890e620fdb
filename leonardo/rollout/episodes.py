"""Multi-turn rollouts: the one loop that learner and evaluation share.

Episodes run in waves. All episodes of a wave think at once (one batched call of the policy a turn) and act at once
(their sandboxes are stepped by a pool of threads). The policy's own tokens are kept exactly as they were sampled and
are never tokenized again; observations are appended to them.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from leonardo.errors import InfrastructureError
from leonardo.rollout.environment import Outcome
from leonardo.rollout.episode import (
    AnyTask,
    Environment,
    Episode,
    EpisodeSettings,
    Finish,
    Messages,
    Rollout,
    Turn,
    terminal,
)
from leonardo.rollout.formats import ToolFormat, Tools
from leonardo.rollout.sandboxes import MakeBackend
from leonardo.tasks.task import Task


@dataclass(frozen=True)
class Generation:
    """One turn as sampled.

    Attributes:
        tokens: what the policy chose, with the token that ends the turn where it came to it.
        logprobs: of each of them, at temperature 1 without any filter.
        entropy: mean over the turn, in nats.
        finished: whether the turn was ended by the policy rather than by the limit.
    """

    tokens: Sequence[int]
    logprobs: Sequence[float]
    entropy: float
    finished: bool


class Policy(Protocol):
    """What a rollout asks of a policy."""

    @property
    def tool_format(self) -> ToolFormat:
        """How it writes tool calls."""

    def prompt(self, messages: Messages, tools: Tools) -> list[int]:
        """Tokens of a conversation, up to and with the opening of the policy's turn."""

    def observation(self, text: str) -> list[int]:
        """Tokens from the end of the policy's turn, through a tool's answer, to the opening of its next."""

    def request(self, text: str) -> list[int]:
        """The same through what the user says next; only asked for where an environment's user speaks again."""

    def text(self, tokens: Sequence[int]) -> str:
        """What a turn says, without the token that ends it."""

    def generate(
        self, contexts: Sequence[Sequence[int]], seeds: Sequence[tuple[int, int]], limit: int
    ) -> list[Generation]:
        """A turn of at most ``limit`` tokens for each context. ``seeds[i]`` alone decides row i's random draws."""


@runtime_checkable
class MakesEnvironments(Protocol):
    """A kind of environment other than the terminal: it stands where else a :data:`MakeBackend` does."""

    def environment(self, task: AnyTask, settings: EpisodeSettings) -> Environment:
        """An episode's environment, not begun."""


def open_environment(task: AnyTask, worlds: MakeBackend | MakesEnvironments, settings: EpisodeSettings) -> Environment:
    """The environment of an episode of ``task``."""
    if isinstance(worlds, MakesEnvironments):
        return worlds.environment(task, settings)
    return terminal(task, worlds, settings)


@runtime_checkable
class StartsAhead(Protocol):
    """A :data:`MakeBackend` that can start sandboxes before they are asked for."""

    def prefetch(self, tasks: Sequence[Task]) -> None:
        """These come next, in this order."""


def _no_prefetch(tasks: Sequence[Task]) -> None:
    pass


def run_rollouts(
    policy: Policy,
    tasks: Sequence[AnyTask],
    seeds: Sequence[int],
    make_backend: MakeBackend | MakesEnvironments,
    settings: EpisodeSettings = EpisodeSettings(),
    groups: Sequence[int] | None = None,
) -> Iterator[Rollout]:
    """Roll out ``tasks[i]`` with ``seeds[i]`` for every i (a task stands once an attempt), in order.

    ``make_backend`` gives the sandboxes of terminal tasks, or it makes the environments of another kind of task.

    An infrastructure failure ends only its own rollout, which then has no reward. However the iteration ends, every
    sandbox is closed. Where ``make_backend`` can start sandboxes ahead, it does so with those of the next wave while
    one acts.
    """
    prefetch = make_backend.prefetch if isinstance(make_backend, StartsAhead) else _no_prefetch
    numbers = range(len(tasks)) if groups is None else groups
    with ThreadPoolExecutor(settings.threads, thread_name_prefix="episode") as pool:
        for start in range(0, len(tasks), settings.live):
            part = slice(start, start + settings.live)
            wave = [
                _Sampled(policy, Episode(task, open_environment(task, make_backend, settings), settings, seed, group))
                for task, seed, group in zip(tasks[part], seeds[part], numbers[part], strict=True)
            ]
            try:
                _run_wave(policy, wave, pool, settings, lambda coming=tasks[part.stop :]: prefetch(coming))
            finally:
                _wait([pool.submit(sampled.episode.close) for sampled in wave])
            yield from (sampled.rollout() for sampled in wave)


def _run_wave(
    policy: Policy,
    wave: "list[_Sampled]",
    pool: ThreadPoolExecutor,
    settings: EpisodeSettings,
    once_started: Callable[[], None],
) -> None:
    # the first turn does not need the sandbox: they start while the policy thinks
    pending = [pool.submit(sampled.episode.reset) for sampled in wave]
    active = wave
    while active:
        generations = policy.generate(
            [sampled.tokens for sampled in active],
            [(sampled.episode.seed, len(sampled.episode.turns)) for sampled in active],
            settings.turn_tokens,
        )
        if pending:
            _wait(pending)
            pending = []
            once_started()
        _wait([pool.submit(sampled.act, turn) for sampled, turn in zip(active, generations, strict=True)])
        active = [sampled for sampled in active if sampled.episode.finish is None]


def _wait(futures: Sequence[Future[None]]) -> None:
    for future in futures:
        future.result()


@dataclass
class _Sampled:
    """An episode with the tokens that the policy chose and saw."""

    policy: Policy
    episode: Episode

    def __post_init__(self) -> None:
        self.tokens = self.policy.prompt(self.episode.messages, self.episode.environment.tools)
        self.mask = [False] * len(self.tokens)
        self.logprobs = [0.0] * len(self.tokens)
        self.entropies: list[float] = []

    def act(self, generation: Generation) -> None:
        """Take the policy's turn: act on it, append it and what came of it."""
        episode, environment = self.episode, self.episode.environment
        if episode.finish is not None:
            return
        prompt_tokens = len(self.tokens)
        self._append(generation.tokens, generation.logprobs)
        self.entropies.append(generation.entropy)
        text = self.policy.text(generation.tokens)
        outcome, seconds = Outcome(""), 0.0
        if not generation.finished:
            episode.end(Finish.LENGTH)
        else:
            before = len(environment.times.commands)
            try:
                outcome = environment.act(text, self.policy.tool_format)
            except InfrastructureError as error:
                episode.fail(error)
            else:
                seconds = sum(environment.times.commands[before:])
                episode.judge(outcome)
        episode.add(
            Turn(
                text, outcome.action, outcome.observation, outcome.exit_code, seconds, prompt_tokens,
                tuple(generation.tokens), tuple(generation.logprobs), calls=outcome.calls,
            )
        )  # fmt: skip
        if episode.finish is None:
            follows = self.policy.request if outcome.speaker == "user" else self.policy.observation
            self._append(follows(outcome.observation))
            episode.spend(len(self.tokens))
        if episode.finish is not None:
            episode.close()

    def rollout(self) -> Rollout:
        entropy = sum(self.entropies) / len(self.entropies) if self.entropies else 0.0
        return self.episode.rollout(self.tokens, self.mask, self.logprobs, entropy)

    def _append(self, tokens: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        self.tokens = [*self.tokens, *tokens]
        self.mask += [logprobs is not None] * len(tokens)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(tokens)
