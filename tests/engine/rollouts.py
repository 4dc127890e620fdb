"""Rollouts that nobody made, for what needs only their rewards and tokens."""

from collections.abc import Sequence

from leonardo.errors import FailureClass
from leonardo.rollout.environment import Times
from leonardo.rollout.episode import Finish, Rollout


def rollout(reward: float | None, tokens: Sequence[int] = (1, 2, 3), logprobs: Sequence[float] = (0.0, -1.0, -1.0)):
    failed = reward is None
    return Rollout(
        "t", "f", 0, 0, [], tuple(tokens), (False, *(True,) * (len(tokens) - 1)), tuple(logprobs), (), reward,
        FailureClass.RUNTIME if failed else None, "", Finish.INFRASTRUCTURE if failed else Finish.SUBMITTED, "", 0.0,
        Times(),
    )  # fmt: skip
