"""Step records: one JSON object a line, with all that gates and reports ask of a step. Both engines write this form."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from leonardo.errors import InputError
from leonardo.files import write_atomic


class StepRecord(BaseModel):
    """One step of the learner. What an engine cannot know is None: a 0 is a measurement.

    Attributes:
        rewards: a list a group that was sampled; None where the infrastructure failed.
        task_ids, families: one a group.
        groups, zero_variance_groups, groups_kept, dropped_groups: sampled; all rewards the same; trained on; too few
            valid rewards.
        mask_fraction: share of response tokens whose update the trust region masked.
        ratio_mean, ratio_max, divergence_mean, divergence_max: learner against rollout policy, over all passes.
        first_pass_ratio_max_deviation: largest ``|ratio - 1|`` before the first update, when both are the same policy.
        logprob_difference_mean, logprob_difference_max: of rollout engine and learner, absolute, before the first
            update, over the response tokens that were sampled with the learner's own weights.
        gradient_norm, update_norm: Euclidean, over all parameters; of the step's mean gradient and of its change.
        parameters_moved_share: share of scalar parameters that changed.
        finite, non_finite: whether losses, gradients and weights were finite, and the tensors that were not.
        parsed_action_share: share of the policy's turns that held a valid tool call.
        tokens: ``prompt`` (with observations) and ``response``.
        response_length_mean: response tokens of a rollout; entropy_mean: of a rollout's turns, in nats. Both, and the
            two shares below, over the rollouts that the infrastructure did not end.
        overlong_share: share of rollouts cut off by a limit on tokens; step_limit_share: by the limit on turns.
        weights_digest: SHA-256 of the weights that the rollout policy got.
        weights_agree: whether the rollout engine was seen to hold the learner's weights after the hand-over.
        injected: faults injected on purpose, as ``name=value``; a record that has one is a control run's.
        times: seconds, by phase; ``sandbox`` is the sandboxes' part of ``rollout``, summed over episodes.
        sandbox: milliseconds, [p50, p95].
        memory: GB that the learner had allocated on its GPU: ``held`` before the update, at most during ``update``, and
            during the ``hand_over`` of weights before it. Empty where there is no GPU.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    step: int
    rewards: Sequence[Sequence[float | None]]
    task_ids: Sequence[str]
    families: Sequence[str]
    rollouts: int
    groups: int
    zero_variance_groups: int
    zero_variance_share: float | None
    groups_kept: int
    dropped_groups: int
    reward_mean: float | None
    infrastructure_failures: int
    failures_by_class: Mapping[str, int]
    mask_fraction: float | None
    ratio_mean: float | None
    ratio_max: float | None
    divergence_mean: float | None
    divergence_max: float | None
    first_pass_ratio_max_deviation: float | None
    logprob_difference_mean: float | None = None
    logprob_difference_max: float | None = None
    loss: float | None
    gradient_norm: float | None
    update_norm: float | None
    parameters_moved_share: float | None
    finite: bool | None
    non_finite: Sequence[str]
    parsed_action_share: float | None
    tokens: Mapping[str, int]
    response_length_mean: float | None
    entropy_mean: float | None
    overlong_share: float | None = None
    step_limit_share: float | None = None
    weights_digest: str | None
    weights_agree: bool | None = None
    injected: Sequence[str] = ()
    learning_rate: float | None
    times: Mapping[str, float]
    sandbox: Mapping[str, Sequence[float]]
    memory: Mapping[str, float] = {}


def append_record(path: Path, record: StepRecord) -> None:
    """Append one line, in a single write, and have it on the disk."""
    line = json.dumps(record.model_dump(mode="json"), allow_nan=False) + "\n"
    with path.open("ab", buffering=0) as stream:
        stream.write(line.encode())
        os.fsync(stream.fileno())


def keep_records(path: Path, count: int) -> None:
    """Cut the file back to its first ``count`` records: a run goes on from there.

    Raises:
        InputError: there are fewer.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    kept = [line for line in lines[:count] if line.endswith(b"\n")]
    if len(kept) < count:
        raise InputError(f"{path} has {len(kept)} of the {count} records before the checkpoint", "It was edited")
    if len(lines) > count:
        write_atomic(path, b"".join(kept))


def read_records(path: Path, after: int = 0) -> list[StepRecord]:
    """All records but the first ``after``, in their order; none where there is no file.

    A last line without an end was never finished, and is none.

    Raises:
        InputError: a line that is no step record; names the line and what is wrong with it.
    """
    records, bad = readable_records(path, after)
    if bad:
        raise InputError(bad, "It was edited or is another's")
    return records


def readable_records(path: Path, after: int = 0) -> tuple[list[StepRecord], str]:
    """The records, without the lines that are none; and which lines those are, in one line ("" for none)."""
    if not path.is_file():
        return [], ""
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    records, bad = [], []
    for number, line in enumerate(whole.splitlines()[after:], after + 1):
        try:
            records.append(StepRecord.model_validate_json(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "the line"
            bad.append(f"{path} line {number} is no step record ({where}: {first['msg']})")
    more = f", and {len(bad) - 1} more" if bad[1:] else ""
    return records, bad[0] + more if bad else ""
