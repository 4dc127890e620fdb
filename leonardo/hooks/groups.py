"""Groups without their infrastructure failures: rewards, filter and advantages of what is left, nothing for the rest.

A rollout that :mod:`leonardo.hooks.failures` has marked has no reward. Upstream's arrays want a number in its place:
they get the mean of its group's others, which moves neither mean nor variance test, and the rollout is taken out before
anything is trained on.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from leonardo.hooks.failures import active, failure_of, number

MINIMUM, MOST_LOST = "LEONARDO_GROUP_MINIMUM", "LEONARDO_LOST_GROUPS"

_log = logging.getLogger(__name__)


def failed(result: Any) -> set[int]:
    """Which rollouts of upstream's result (of a group, or of a batch) are infrastructure failures."""
    if not active():
        return set()
    return {index for index, state in enumerate(result.request_info.rollout_states or ()) if failure_of(state)}


def drop_group(result: Any, step: int | None) -> bool:
    """Whether to drop a group: it has too few valid rewards to be trained on (``LEONARDO_GROUP_MINIMUM``, 2).

    A group of an evaluation (``step`` is None) is lost with its first failure: its figures ask for all of them. A group
    that stays gets the mean of its valid rewards in the place of those that are missing.

    Raises:
        InfrastructureError: ``LEONARDO_LOST_GROUPS`` (64) groups in a row were lost: the machine is broken.
    """
    missing = failed(result)
    valid = [score for index, score in enumerate(result.reward_scores) if index not in missing]
    least = number(MINIMUM, 2) if step is not None else len(result.reward_scores)
    if not missing or len(valid) >= max(least, 1):
        _in_a_row().clear()
        if missing:
            mean = valid[0] if len(set(valid)) == 1 else math.fsum(valid) / len(valid)
            result.reward_scores = [mean if index in missing else s for index, s in enumerate(result.reward_scores)]
        return False
    classes = [failure_of(result.request_info.rollout_states[index])["class"] for index in sorted(missing)]
    _in_a_row().append(Counter(classes))
    _log.warning(
        "group of prompt %s dropped: %d of %d rollouts lost (%s)",
        result.index, len(missing), len(result.reward_scores), _counted(Counter(classes)),
    )  # fmt: skip
    most = number(MOST_LOST, 64)
    if len(_in_a_row()) >= most:
        from leonardo.errors import InfrastructureError

        raise InfrastructureError(
            f"{most} groups in a row were lost ({_counted(sum(_in_a_row(), Counter()))})",
            "Look at the classes; leonardo doctor says what this machine allows",
        )
    return True


@cache
def _in_a_row() -> list[Counter[str]]:
    """Classes of the groups lost in this process since the last that was not."""
    return []


def _counted(classes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(classes.items()))


def valid_advantages(compute: Callable[..., Any], advantages: Any, scores: Any, result: Any, config: Any) -> Any:
    """Upstream's advantages, those of groups with failures computed anew over the valid rewards; 0 for the failures.

    Args:
        compute: upstream's function.
        advantages, scores: flat arrays, group after group.
        result: the batch.
        config: upstream's, for group size and normalisation.
    """
    missing = failed(result)
    size = config.num_samples_per_prompt_rollout
    for start in {index - index % size for index in missing}:
        members = [index for index in range(start, start + size) if index not in missing]
        advantages[start : start + size] = 0
        if members:
            advantages[members] = compute(scores[members], len(members), config.advantage_normalization_type)
    return advantages


def counted_rewards(rewards: list[Any], parts: list[Any], states: Sequence[Mapping[str, Any]]) -> tuple[Any, Any]:
    """The scorers' rewards that enter upstream's means: those of rollouts that have one (all, where none has)."""
    kept = [index for index, state in enumerate(states) if not (active() and failure_of(state))]
    if not kept or len(kept) == len(rewards):
        return rewards, parts
    return [rewards[index] for index in kept], [parts[index] for index in kept]


def blank_missing_rewards(records: list[dict[str, Any]]) -> None:
    """Put null for reward and advantage into upstream's saved rollouts that have none."""
    for record in records:
        if active() and failure_of((record.get("request_info") or {}).get("rollout_state")):
            record.update({name: None for name in ("reward", "advantage") if name in record})
