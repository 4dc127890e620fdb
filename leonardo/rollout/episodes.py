"""Multi-turn rollouts: the one loop that learner and evaluation share.

Episodes run in waves. All episodes of a wave think at once (one batched call of the policy a turn) and act at once
(their sandboxes are stepped by a pool of threads). The policy's own tokens are kept exactly as they were sampled and
are never tokenized again; observations are appended to them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from leonardo.errors import FailureClass, InfrastructureError
from leonardo.rollout.environment import Outcome, TerminalEnvironment, Times
from leonardo.rollout.formats import Call, ToolFormat, Tools
from leonardo.rollout.observation import ObservationRules
from leonardo.rollout.prompts import BASH_TOOL
from leonardo.rollout.sandboxes import MakeBackend
from leonardo.tasks.task import Task

Messages = Sequence[Mapping[str, str]]


class Finish(StrEnum):
    """Why a rollout ended."""

    SUBMITTED = "submitted"
    STEP_LIMIT = "step-limit"
    LENGTH = "length"
    OUT_OF_MEMORY = "out-of-memory"
    INFRASTRUCTURE = "infrastructure"


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


@dataclass(frozen=True)
class EpisodeSettings:
    """Bounds of an episode and of how many run at once. The defaults are the desk's.

    Attributes:
        steps: turns the policy has; format errors count (the desk's tasks take five at most, submission included).
        turn_tokens: tokens of one turn (the desk's longest demonstration has 40).
        context_tokens: tokens of the whole conversation.
        rules: how much of an output is shown.
        command_timeout, verifier_timeout: in seconds.
        live: sandboxes alive at once, and rows of a batch.
        threads: sandboxes stepped at once.
    """

    steps: int = 6
    turn_tokens: int = 48
    context_tokens: int = 512
    rules: ObservationRules = ObservationRules(limit=240, head=120, tail=120)
    command_timeout: float = 20.0
    verifier_timeout: float = 60.0
    live: int = 128
    threads: int = 8


@dataclass(frozen=True)
class Turn:
    """One turn: what was said, the action (a command) and calls if it could be read, and what came of
    it.

    ``counted_tokens`` is how many tokens a server says that it generated, where the tokens themselves are not known.
    """

    text: str
    command: str | None
    observation: str
    exit_code: int | None
    seconds: float
    prompt_tokens: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    calls: tuple[Call, ...] = ()
    counted_tokens: int | None = None

    @property
    def completion_tokens(self) -> int:
        """How many tokens the policy chose."""
        return len(self.tokens) if self.counted_tokens is None else self.counted_tokens


@dataclass(frozen=True)
class Rollout:
    """One episode with its tokens.

    Attributes:
        task_id, family, group, seed: whose it is; rollouts of one group share the prompt.
        messages: the conversation it began with.
        tokens: the whole conversation.
        response_mask: True where the policy chose the token.
        logprobs: of the chosen tokens as recorded when sampled, 0.0 elsewhere.
        reward: 0 or 1; None where the infrastructure failed, and only there.
        failure: the class of that failure.
        status: the verifier's word, or ``""`` if it was not asked.
        entropy: mean over turns, in nats.
        tools: what the policy could call.
    """

    task_id: str
    family: str
    group: int
    seed: int
    messages: Messages
    tokens: tuple[int, ...]
    response_mask: tuple[bool, ...]
    logprobs: tuple[float, ...]
    turns: tuple[Turn, ...]
    reward: float | None
    failure: FailureClass | None
    failure_reason: str
    finish: Finish
    status: str
    entropy: float
    times: Times
    tools: Tools = (BASH_TOOL,)

    @property
    def parsed_actions(self) -> int:
        """Turns that could be read."""
        return sum(turn.command is not None for turn in self.turns)

    @property
    def response_tokens(self) -> int:
        """Tokens that the policy chose."""
        return sum(self.response_mask)


class AnyTask(Protocol):
    """What a rollout asks of a task."""

    @property
    def id(self) -> str: ...

    @property
    def kind(self) -> str: ...


class Environment(Protocol):
    """One episode of a task: what it begins with, what comes of a turn, and in the end a reward.

    Whatever fails that is not the policy's doing is raised as InfrastructureError, and there is no reward then.
    """

    times: Times

    @property
    def messages(self) -> Messages:
        """The conversation that the episode begins with."""

    @property
    def tools(self) -> Tools:
        """What the policy may call."""

    def reset(self) -> None:
        """Begin."""

    def act(self, text: str, tool_format: ToolFormat) -> Outcome:
        """Take a whole turn of the policy."""

    def close(self) -> None:
        """Give back what the episode held. May be called twice."""


@runtime_checkable
class MakesEnvironments(Protocol):
    """A kind of environment other than the terminal: it stands where else a :data:`MakeBackend` does."""

    def environment(self, task: AnyTask, settings: EpisodeSettings) -> Environment:
        """An episode's environment, not begun."""


def open_environment(task: AnyTask, worlds: MakeBackend | MakesEnvironments, settings: EpisodeSettings) -> Environment:
    """The environment of an episode of ``task``."""
    if isinstance(worlds, MakesEnvironments):
        return worlds.environment(task, settings)
    return TerminalEnvironment(
        task,
        worlds,
        rules=settings.rules,
        command_timeout=settings.command_timeout,
        verifier_timeout=settings.verifier_timeout,
    )


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
                _Episode(policy, task, seed, group, make_backend, settings)
                for task, seed, group in zip(tasks[part], seeds[part], numbers[part], strict=True)
            ]
            try:
                _run_wave(policy, wave, pool, settings, lambda coming=tasks[part.stop :]: prefetch(coming))
            finally:
                _wait([pool.submit(episode.close) for episode in wave])
            yield from (episode.rollout() for episode in wave)


def _run_wave(
    policy: Policy,
    wave: "list[_Episode]",
    pool: ThreadPoolExecutor,
    settings: EpisodeSettings,
    once_started: Callable[[], None],
) -> None:
    # the first turn does not need the sandbox: they start while the policy thinks
    pending = [pool.submit(episode.reset) for episode in wave]
    active = wave
    while active:
        generations = policy.generate(
            [episode.tokens for episode in active],
            [(episode.seed, len(episode.turns)) for episode in active],
            settings.turn_tokens,
        )
        if pending:
            _wait(pending)
            pending = []
            once_started()
        _wait([pool.submit(episode.act, turn) for episode, turn in zip(active, generations, strict=True)])
        active = [episode for episode in active if episode.finish is None]


def _wait(futures: Sequence[Future[None]]) -> None:
    for future in futures:
        future.result()


@dataclass
class _Episode:
    """An episode under way."""

    policy: Policy
    task: AnyTask
    seed: int
    group: int
    make_backend: MakeBackend | MakesEnvironments
    settings: EpisodeSettings
    turns: list[Turn] = field(default_factory=list)
    finish: Finish | None = None
    reward: float | None = None
    error: InfrastructureError | None = None
    status: str = ""

    def __post_init__(self) -> None:
        self.environment = open_environment(self.task, self.make_backend, self.settings)
        self.messages = self.environment.messages
        self.tokens = self.policy.prompt(self.messages, self.environment.tools)
        self.mask = [False] * len(self.tokens)
        self.logprobs = [0.0] * len(self.tokens)
        self.entropies: list[float] = []

    def reset(self) -> None:
        try:
            self.environment.reset()
        except InfrastructureError as error:
            self._fail(error)

    def act(self, generation: Generation) -> None:
        """Take the policy's turn: act on it, append it and what came of it."""
        if self.finish is not None:
            return
        prompt_tokens = len(self.tokens)
        self._append(generation.tokens, generation.logprobs)
        self.entropies.append(generation.entropy)
        text = self.policy.text(generation.tokens)
        outcome, seconds = Outcome(""), 0.0
        if not generation.finished:
            self._end(Finish.LENGTH)
        else:
            before = len(self.environment.times.commands)
            try:
                outcome = self.environment.act(text, self.policy.tool_format)
            except InfrastructureError as error:
                self._fail(error)
            else:
                seconds = sum(self.environment.times.commands[before:])
                if outcome.done:
                    self.status = outcome.status
                    oom = outcome.status == Finish.OUT_OF_MEMORY
                    self._end(Finish.OUT_OF_MEMORY if oom else Finish.SUBMITTED, outcome.reward)
        self.turns.append(
            Turn(
                text, outcome.action, outcome.observation, outcome.exit_code, seconds, prompt_tokens,
                tuple(generation.tokens), tuple(generation.logprobs), calls=outcome.calls,
            )
        )  # fmt: skip
        if self.finish is not None:
            self.close()
        elif len(self.turns) == self.settings.steps:
            self._end(Finish.STEP_LIMIT)
            self.close()
        else:
            follows = self.policy.request if outcome.speaker == "user" else self.policy.observation
            self._append(follows(outcome.observation))
            if len(self.tokens) + self.settings.turn_tokens > self.settings.context_tokens:
                self._end(Finish.LENGTH)
                self.close()

    def close(self) -> None:
        """End the sandbox. If the machine cannot, the rollout loses its reward: it may not have been alone."""
        try:
            self.environment.close()
        except InfrastructureError as error:
            self._fail(error)

    def rollout(self) -> Rollout:
        return Rollout(
            task_id=self.task.id,
            family=self.task.kind,
            group=self.group,
            seed=self.seed,
            messages=self.messages,
            tokens=tuple(self.tokens),
            response_mask=tuple(self.mask),
            logprobs=tuple(self.logprobs),
            turns=tuple(self.turns),
            reward=self.reward,
            failure=self.error.failure if self.error else None,
            failure_reason=str(self.error) if self.error else "",
            finish=self.finish or Finish.INFRASTRUCTURE,
            status=self.status,
            entropy=sum(self.entropies) / len(self.entropies) if self.entropies else 0.0,
            times=self.environment.times,
            tools=self.environment.tools,
        )

    def _append(self, tokens: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        self.tokens = [*self.tokens, *tokens]
        self.mask += [logprobs is not None] * len(tokens)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(tokens)

    def _end(self, finish: Finish, reward: float | None = 0.0) -> None:
        self.finish, self.reward = finish, reward

    def _fail(self, error: InfrastructureError) -> None:
        self.finish, self.reward, self.error = Finish.INFRASTRUCTURE, None, error
