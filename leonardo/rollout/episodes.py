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
from leonardo.rollout.environment import TerminalEnvironment, Times
from leonardo.rollout.formats import ToolFormat
from leonardo.rollout.observation import ObservationRules
from leonardo.rollout.prompts import FORMAT_ERROR, messages_of
from leonardo.rollout.sandboxes import MakeBackend
from leonardo.rollout.tool_calls import ToolCallError, parse_tool_call
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

    def prompt(self, messages: Messages) -> list[int]:
        """Tokens of a conversation, up to and with the opening of the policy's turn."""

    def observation(self, text: str) -> list[int]:
        """Tokens from the end of the policy's turn, through the observation, to the opening of its next."""

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
    """One turn: what was said, the command if there was a valid one, and what came of it.

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

    @property
    def parsed_actions(self) -> int:
        """Turns that held a valid tool call."""
        return sum(turn.command is not None for turn in self.turns)

    @property
    def response_tokens(self) -> int:
        """Tokens that the policy chose."""
        return sum(self.response_mask)


@runtime_checkable
class StartsAhead(Protocol):
    """A :data:`MakeBackend` that can start sandboxes before they are asked for."""

    def prefetch(self, tasks: Sequence[Task]) -> None:
        """These come next, in this order."""


def _no_prefetch(tasks: Sequence[Task]) -> None:
    pass


def run_rollouts(
    policy: Policy,
    tasks: Sequence[Task],
    seeds: Sequence[int],
    make_backend: MakeBackend,
    settings: EpisodeSettings = EpisodeSettings(),
    groups: Sequence[int] | None = None,
) -> Iterator[Rollout]:
    """Roll out ``tasks[i]`` with ``seeds[i]`` for every i (a task stands once an attempt), in order.

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
    task: Task
    seed: int
    group: int
    make_backend: MakeBackend
    settings: EpisodeSettings
    turns: list[Turn] = field(default_factory=list)
    finish: Finish | None = None
    reward: float | None = None
    error: InfrastructureError | None = None
    status: str = ""

    def __post_init__(self) -> None:
        self.messages = messages_of(self.task)
        self.tokens = self.policy.prompt(self.messages)
        self.mask = [False] * len(self.tokens)
        self.logprobs = [0.0] * len(self.tokens)
        self.entropies: list[float] = []
        self.environment = TerminalEnvironment(
            self.task,
            self.make_backend,
            rules=self.settings.rules,
            command_timeout=self.settings.command_timeout,
            verifier_timeout=self.settings.verifier_timeout,
        )

    def reset(self) -> None:
        try:
            self.environment.reset()
        except InfrastructureError as error:
            self._fail(error)

    def act(self, generation: Generation) -> None:
        """Take the policy's turn: parse it, run its command, append both."""
        if self.finish is not None:
            return
        prompt_tokens = len(self.tokens)
        self._append(generation.tokens, generation.logprobs)
        self.entropies.append(generation.entropy)
        text = self.policy.text(generation.tokens)
        command, observation, exit_code, seconds = None, "", None, 0.0
        if not generation.finished:
            self._end(Finish.LENGTH)
        else:
            try:
                command = parse_tool_call(text, self.policy.tool_format).command
                outcome = self.environment.step(command)
            except ToolCallError:
                observation = FORMAT_ERROR
            except InfrastructureError as error:
                self._fail(error)
            else:
                observation, exit_code = outcome.observation, outcome.exit_code
                seconds = self.environment.times.commands[-1]
                if outcome.done:
                    self.status = outcome.status
                    oom = outcome.status == Finish.OUT_OF_MEMORY
                    self._end(Finish.OUT_OF_MEMORY if oom else Finish.SUBMITTED, outcome.reward)
        self.turns.append(
            Turn(
                text, command, observation, exit_code, seconds, prompt_tokens,
                tuple(generation.tokens), tuple(generation.logprobs),
            )
        )  # fmt: skip
        if self.finish is not None:
            self.close()
        elif len(self.turns) == self.settings.steps:
            self._end(Finish.STEP_LIMIT)
            self.close()
        else:
            self._append(self.policy.observation(observation))
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
        )

    def _append(self, tokens: Sequence[int], logprobs: Sequence[float] | None = None) -> None:
        self.tokens = [*self.tokens, *tokens]
        self.mask += [logprobs is not None] * len(tokens)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(tokens)

    def _end(self, finish: Finish, reward: float | None = 0.0) -> None:
        self.finish, self.reward = finish, reward

    def _fail(self, error: InfrastructureError) -> None:
        self.finish, self.reward, self.error = Finish.INFRASTRUCTURE, None, error
