"""A rollout: one episode with its tokens, log-probabilities, actions and reward."""

from dataclasses import dataclass, field

from leonardo.errors import FailureClass
from leonardo.rollout.environment import Times


@dataclass(frozen=True)
class Turn:
    """One turn of the policy and what came of it.

    Attributes:
        text: what the policy wrote, end-of-turn token left out.
        command: the parsed command, or None where there was no valid tool call.
        observation: what the policy was shown then; empty after the last turn.
        exit_code: the command's, or None.
        seconds: the command took.
    """

    text: str
    command: str | None
    observation: str
    exit_code: int | None
    seconds: float


@dataclass
class Rollout:
    """An episode of one task.

    Attributes:
        task_id, family: of the task.
        group: rollouts of one prompt share it.
        seed: of the sampling.
        instruction: what the policy was told.
        tokens: the whole conversation, prompt first.
        response_mask: True where the policy chose the token; as long as ``tokens``.
        logprobs: log mu of the chosen tokens, as recorded at sampling; 0 elsewhere; as long as ``tokens``.
        turns: in order.
        reward: 0 or 1; None where the infrastructure failed.
        failure: why there is no reward, or None.
        finish: ``submitted``, ``step-limit``, ``out-of-memory`` or ``infrastructure``.
        status: the verifier's word, where it ran.
        times: where the sandbox's time went.
    """

    task_id: str
    family: str
    group: int
    seed: int
    instruction: str
    tokens: list[int] = field(default_factory=list)
    response_mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    reward: float | None = None
    failure: FailureClass | None = None
    reason: str = ""
    finish: str = ""
    status: str = ""
    times: Times = field(default_factory=Times)

    def add(self, tokens: list[int], logprobs: list[float] | None = None) -> None:
        """Append tokens: chosen by the policy if they have log-probabilities, else given to it."""
        self.tokens += tokens
        self.response_mask += [logprobs is not None] * len(tokens)
        self.logprobs += logprobs if logprobs is not None else [0.0] * len(tokens)

    @property
    def parsed_actions(self) -> int:
        """Turns with a valid tool call."""
        return sum(turn.command is not None for turn in self.turns)

    @property
    def response_length(self) -> int:
        """Tokens that the policy chose."""
        return sum(self.response_mask)
