"""An episode: its bounds, what it is while it is under way, and the rollout that it leaves.

One class keeps the state, whoever takes the turns: the batched loop that samples tokens itself
(:mod:`leonardo.rollout.episodes`) and the one that asks a server (:mod:`leonardo.evaluation.conversation`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

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


def terminal(task: Task, make_backend: MakeBackend, settings: EpisodeSettings) -> TerminalEnvironment:
    """The terminal, within an episode's bounds."""
    return TerminalEnvironment(
        task,
        make_backend,
        rules=settings.rules,
        command_timeout=settings.command_timeout,
        verifier_timeout=settings.verifier_timeout,
    )


@dataclass
class Episode:
    """An episode under way.

    Attributes:
        messages: the conversation that it begins with.
        turns: those taken; ``finish`` is None until it has ended.
        reward: None where the infrastructure failed (``error``), and only there.
        status: the verifier's word, or ``""`` if it was not asked.
    """

    task: AnyTask
    environment: Environment
    settings: EpisodeSettings
    seed: int
    group: int = 0
    turns: list[Turn] = field(default_factory=list)
    finish: Finish | None = None
    reward: float | None = None
    error: InfrastructureError | None = None
    status: str = ""

    def __post_init__(self) -> None:
        self.messages = self.environment.messages

    def reset(self) -> None:
        """Begin; a machine that cannot ends it."""
        try:
            self.environment.reset()
        except InfrastructureError as error:
            self.fail(error)

    def judge(self, outcome: Outcome) -> None:
        """End it where an action has."""
        if outcome.done:
            self.status = outcome.status
            oom = outcome.status == Finish.OUT_OF_MEMORY
            self.end(Finish.OUT_OF_MEMORY if oom else Finish.SUBMITTED, outcome.reward)

    def add(self, turn: Turn) -> None:
        """Keep a turn; the last one that there may be ends it."""
        self.turns.append(turn)
        if len(self.turns) == self.settings.steps:
            self.end(Finish.STEP_LIMIT)

    def spend(self, tokens: int) -> None:
        """End it where a conversation of so many tokens has no room for another turn."""
        if tokens + self.settings.turn_tokens > self.settings.context_tokens:
            self.end(Finish.LENGTH)

    def end(self, finish: Finish, reward: float | None = 0.0) -> None:
        """End it; what ended it first stands."""
        if self.finish is None:
            self.finish, self.reward = finish, reward

    def fail(self, error: InfrastructureError) -> None:
        """The machine failed: whatever it had come to, there is no reward."""
        self.finish, self.reward, self.error = Finish.INFRASTRUCTURE, None, error

    def close(self) -> None:
        """End the sandbox. If the machine cannot, the rollout loses its reward: it may not have been alone."""
        try:
            self.environment.close()
        except InfrastructureError as error:
            self.fail(error)

    def rollout(
        self,
        tokens: Sequence[int] = (),
        response_mask: Sequence[bool] = (),
        logprobs: Sequence[float] = (),
        entropy: float = 0.0,
    ) -> Rollout:
        """What it leaves; the tokens, where they are known."""
        return Rollout(
            task_id=self.task.id,
            family=self.task.kind,
            group=self.group,
            seed=self.seed,
            messages=self.messages,
            tokens=tuple(tokens),
            response_mask=tuple(response_mask),
            logprobs=tuple(logprobs),
            turns=tuple(self.turns),
            reward=self.reward,
            failure=self.error.failure if self.error else None,
            failure_reason=str(self.error) if self.error else "",
            finish=self.finish or Finish.INFRASTRUCTURE,
            status=self.status,
            entropy=entropy,
            times=self.environment.times,
            tools=self.environment.tools,
        )
