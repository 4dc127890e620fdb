"""Step records: one JSON object a line, with all that gates and reports ask of a step. Both engines write this form."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict


class StepRecord(BaseModel):
    """One step of the learner.

    Attributes:
        rewards: a list a group that was sampled; None where the infrastructure failed.
        task_ids, families: one a group.
        groups, zero_variance_groups, groups_kept, dropped_groups: sampled; all rewards the same; trained on; too few
            valid rewards.
        mask_fraction: share of response tokens whose update the trust region masked.
        ratio_mean, ratio_max, divergence_mean, divergence_max: learner against rollout policy, over all passes.
        first_pass_ratio_max_deviation: largest ``|ratio - 1|`` before the first update, when both are the same policy.
        gradient_norm, update_norm: Euclidean, over all parameters; of the step's mean gradient and of its change.
        parameters_moved_share: share of scalar parameters that changed.
        finite, non_finite: whether losses, gradients and weights were finite, and the tensors that were not.
        parsed_action_share: share of the policy's turns that held a valid tool call.
        tokens: ``prompt`` (with observations) and ``response``.
        weights_digest: SHA-256 of the weights that the rollout policy got.
        times: seconds, by phase; ``sandbox`` is the sandboxes' part of ``rollout``, summed over episodes.
        sandbox: milliseconds, [p50, p95].
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    step: int
    rewards: Sequence[Sequence[float | None]]
    task_ids: Sequence[str]
    families: Sequence[str]
    rollouts: int
    groups: int
    zero_variance_groups: int
    zero_variance_share: float
    groups_kept: int
    dropped_groups: int
    reward_mean: float
    infrastructure_failures: int
    failures_by_class: Mapping[str, int]
    mask_fraction: float
    ratio_mean: float
    ratio_max: float
    divergence_mean: float
    divergence_max: float
    first_pass_ratio_max_deviation: float
    loss: float
    gradient_norm: float
    update_norm: float
    parameters_moved_share: float
    finite: bool
    non_finite: Sequence[str]
    parsed_action_share: float
    tokens: Mapping[str, int]
    response_length_mean: float
    entropy_mean: float
    weights_digest: str
    learning_rate: float
    times: Mapping[str, float]
    sandbox: Mapping[str, Sequence[float]]


def append_record(path: Path, record: StepRecord) -> None:
    """Append one line, in a single write, and have it on the disk."""
    line = json.dumps(record.model_dump(mode="json"), allow_nan=False) + "\n"
    with path.open("ab", buffering=0) as stream:
        stream.write(line.encode())
        os.fsync(stream.fileno())
