"""Is there a signal to learn from, and did it reach the weights? Figures from the step records of either engine.

Infrastructure failures are taken out of a group before its variance is looked at: a group whose rewards differ only
because sandboxes were lost holds no signal, and an engine that trains on one is at fault.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from leonardo.gates.steps import StepRecord

Rewards = Sequence[float | None]


def has_signal(rewards: Rewards) -> bool:
    """Whether the rewards of a group that are rewards at all differ."""
    return len({reward for reward in rewards if reward is not None}) > 1


def signal_figures(records: Sequence[StepRecord]) -> dict[str, Any]:
    """What the records show, by name; None where no record says.

    - ``updates``, ``nonzero_updates``: steps, and those whose update moved a weight (where the update is not known:
      whose gradient was not 0).
    - ``rollouts_after_update``: rollouts that were sampled after the first nonzero update.
    - ``groups``, ``groups_with_signal``, ``signal_share``; ``groups_without_signal_trained``: trained on all the same.
    - ``infrastructure_failures``, ``infrastructure_share``: of all rollouts.
    - ``finite``; ``parsed_action_share``: mean; ``mask_fraction_max``; ``parameters_moved_share``: largest of a step.
    - ``first_pass_ratio_deviation``: largest. ``logprob_difference``: mean of a step, the largest of all steps.
    - ``weights_agree``: in all steps in which that was checked. ``distinct_weights``: how many the engine was given.
    - ``reward_first``, ``reward_last``: mean reward of the first and last step.
    """
    groups = [group for record in records for group in record.rewards]
    with_signal = sum(has_signal(group) for group in groups)
    moved = [_moved(record) for record in records]
    first = moved.index(True) if True in moved else len(records)
    rollouts = sum(record.rollouts for record in records)
    failures = sum(record.infrastructure_failures for record in records)
    checked = _known(records, lambda record: record.weights_agree)
    return {
        "updates": len(records),
        "nonzero_updates": sum(moved),
        "rollouts_after_update": sum(record.rollouts for record in records[first + 1 :]),
        "groups": len(groups),
        "groups_with_signal": with_signal,
        "signal_share": with_signal / len(groups) if groups else None,
        "groups_without_signal_trained": sum(
            max(0, record.groups_kept - sum(has_signal(group) for group in record.rewards)) for record in records
        ),
        "infrastructure_failures": failures,
        "infrastructure_share": failures / rollouts if rollouts else None,
        "finite": _all(_known(records, lambda record: record.finite), len(records)),
        "parsed_action_share": _mean(_known(records, lambda record: record.parsed_action_share)),
        "mask_fraction_max": _max(_known(records, lambda record: record.mask_fraction)),
        "parameters_moved_share": _max(_known(records, lambda record: record.parameters_moved_share)),
        "first_pass_ratio_deviation": _max(_known(records, lambda record: record.first_pass_ratio_max_deviation)),
        "logprob_difference": _max(_known(records, lambda record: record.logprob_difference_mean)),
        "weights_agree": all(checked) if checked else None,
        "distinct_weights": len(set(_known(records, lambda record: record.weights_digest))) or None,
        "reward_first": records[0].reward_mean if records else None,
        "reward_last": records[-1].reward_mean if records else None,
    }


def _moved(record: StepRecord) -> bool:
    norm = record.update_norm if record.update_norm is not None else record.gradient_norm
    return norm is not None and norm > 0


def _known(records: Iterable[StepRecord], get: Callable[[StepRecord], Any]) -> list[Any]:
    return [value for value in map(get, records) if value is not None]


def _all(values: Sequence[bool], wanted: int) -> bool | None:
    """None where a step did not say."""
    if False in values:
        return False
    return True if values and len(values) == wanted else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _max(values: Sequence[float]) -> float | None:
    return max(values) if values else None
