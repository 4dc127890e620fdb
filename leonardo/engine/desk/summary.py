"""A step in figures: from rollouts and update statistics to the step record."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from leonardo.engine.desk.update import UpdateStatistics
from leonardo.gates.steps import StepRecord
from leonardo.rollout.episode import Finish

if TYPE_CHECKING:
    from leonardo.engine.desk.learner import Groups


def summarize(
    step: int,
    groups: "Groups",
    update: UpdateStatistics,
    digest: str,
    times: Mapping[str, float],
    injected: Sequence[str],
) -> StepRecord:
    """The record of a step; ``times`` in seconds by phase, ``injected`` the faults that are on."""
    rollouts = [rollout for group in groups.sampled for rollout in group]
    whole = [rollout for rollout in rollouts if rollout.failure is None]
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    failures = Counter(rollout.failure.value for rollout in rollouts if rollout.failure is not None)
    response = sum(rollout.response_tokens for rollout in rollouts)

    def of_update(value: float) -> float | None:
        return _finite(value) if update.tokens else None  # without an update there is nothing to speak of

    return StepRecord(
        step=step,
        rewards=[[rollout.reward for rollout in group] for group in groups.sampled],
        task_ids=[group[0].task_id for group in groups.sampled],
        families=[group[0].family for group in groups.sampled],
        rollouts=len(rollouts),
        groups=len(groups.sampled),
        zero_variance_groups=groups.zero_variance,
        zero_variance_share=groups.zero_variance / len(groups.sampled),
        groups_kept=len(groups.kept),
        dropped_groups=groups.too_small,
        reward_mean=_mean(rewards),
        infrastructure_failures=sum(failures.values()),
        failures_by_class=dict(failures),
        mask_fraction=of_update(update.masked),
        ratio_mean=of_update(update.ratio_mean),
        ratio_max=of_update(update.ratio_max),
        divergence_mean=of_update(update.divergence_mean),
        divergence_max=of_update(update.divergence_max),
        first_pass_ratio_max_deviation=of_update(update.first_pass_ratio_max_deviation),
        logprob_difference_mean=of_update(update.difference_mean),
        logprob_difference_max=of_update(update.difference_max),
        loss=of_update(update.loss),
        gradient_norm=_mean(update.gradient_norms),
        update_norm=_finite(update.update_norm),
        parameters_moved_share=update.moved_share,
        finite=not update.non_finite,
        non_finite=update.non_finite,
        parsed_action_share=_mean([turn.command is not None for turn in turns]),
        tokens={"prompt": sum(len(rollout.tokens) for rollout in rollouts) - response, "response": response},
        response_length_mean=_mean([rollout.response_tokens for rollout in whole]),
        entropy_mean=_mean([rollout.entropy for rollout in whole]),
        overlong_share=_mean([rollout.finish is Finish.LENGTH for rollout in whole]),
        step_limit_share=_mean([rollout.finish is Finish.STEP_LIMIT for rollout in whole]),
        weights_digest=digest,
        weights_agree=True,  # the learner compares the digests of both, and stops where they differ
        injected=injected,
        learning_rate=update.learning_rate,
        times={name: round(seconds, 4) for name, seconds in times.items()},
        sandbox={
            "reset_ms": _milliseconds([rollout.times.reset for rollout in rollouts]),
            "command_ms": _milliseconds([seconds for rollout in rollouts for seconds in rollout.times.commands]),
            "verify_ms": _milliseconds([rollout.times.verify for rollout in rollouts if rollout.times.verify]),
            "destroy_ms": _milliseconds([rollout.times.destroy for rollout in rollouts]),
        },
    )


def _mean(values: Sequence[float]) -> float | None:
    """None where there is nothing to take a mean of."""
    return _finite(float(np.mean(values))) if values else None


def _finite(value: float) -> float | None:
    """None for what is no number: it was measured, and the record says elsewhere that it was none."""
    return value if np.isfinite(value) else None


def _milliseconds(seconds: Sequence[float]) -> list[float]:
    """[p50, p95]; nothing where there was nothing."""
    return [round(float(value) * 1000, 3) for value in np.percentile(seconds, (50, 95))] if seconds else []
