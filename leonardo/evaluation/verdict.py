"""What a run has shown, in one sentence. Learning is claimed only where the interval allows it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from leonardo.evaluation.records import Comparison, Ends

MINIMUM_PAIRS = 10
"""With fewer tasks a bootstrap interval is too narrow to lean on."""

Kind = Literal["learning", "no-difference", "regression", "plumbing", "incomplete"]
StepMapping = Mapping[str, Any]
"""A step record, one line of ``steps.jsonl``."""


@dataclass(frozen=True)
class Verdict:
    """``kind``, and why in a sentence that can stand alone."""

    kind: Kind
    sentence: str


def verdict(comparison: Comparison | None, steps: Sequence[StepMapping]) -> Verdict:
    """Judge a run by its step records and its comparison (``None`` where it was not evaluated).

    - ``plumbing``: the steps could not have taught anything: every reward 0, no group with mixed rewards, or no
      weight moved. This outranks any difference, for training cannot have made it.
    - ``incomplete``: not enough was recorded, or too few tasks were paired.
    - ``learning``: the paired interval lies above 0. ``regression``: below 0. ``no-difference``: it includes 0.
    """
    if not steps:
        return Verdict("incomplete", "Incomplete: no training step was recorded, so nothing can be said.")
    ran = f"{len(steps)} training step{'s' if len(steps) > 1 else ''}"
    if untaught := _why_nothing_was_taught(steps):
        return Verdict("plumbing", f"Plumbing only, no learning: {ran} ran end to end, but {untaught}.")
    if not any(True for _ in rewards(steps)) and all(step.get("reward_mean") is None for step in steps):
        return Verdict("incomplete", f"Incomplete: {ran} ran, but no rollout got a reward.")
    if comparison is None:
        return Verdict("incomplete", f"Incomplete: {ran} ran, but base and trained have not been compared.")
    difference = comparison.difference
    if difference.value is None or difference.interval is None or difference.pairs < MINIMUM_PAIRS:
        return Verdict(
            "incomplete",
            f"Incomplete: base and trained share {difference.pairs} tasks with a valid attempt; "
            f"at least {MINIMUM_PAIRS} are needed.",
        )
    low, high = difference.interval
    figures = (
        f"the trained policy passes {percent(comparison.trained.value)}, the base {percent(comparison.base.value)}; "
        f"paired over {difference.pairs} tasks that is {points(difference.value)} points, "
        f"{interval_points(difference.interval)}"
    )
    if low > 0:
        return Verdict("learning", f"Learning: {figures}.")
    if high < 0:
        return Verdict("regression", f"The trained policy is worse: {figures}.")
    return Verdict("no-difference", f"No difference shown: {figures}, which includes 0.")


def rewards(steps: Sequence[StepMapping]) -> Iterator[float]:
    """All rewards of all groups of all steps; infrastructure failures left out."""
    for step in steps:
        for group in step.get("rewards") or ():
            yield from (reward for reward in group if reward is not None)


def percent(share: float | None) -> str:
    """``0.4083`` as ``40.8 %``."""
    return "none" if share is None else f"{100 * share:.1f} %"


def points(difference: float | None) -> str:
    """A difference of shares in percentage points, signed: ``+21.3``."""
    return "none" if difference is None else f"{100 * difference:+.1f}"


def interval_points(ends: Ends) -> str:
    """An interval of a difference, in words."""
    return "no interval" if ends is None else f"95 % interval {points(ends[0])} to {points(ends[1])}"


def _why_nothing_was_taught(steps: Sequence[StepMapping]) -> str:
    """Why these steps cannot have taught the policy anything, or ``""``. Judged only by what was recorded."""
    seen = [*rewards(steps), *(step["reward_mean"] for step in steps if step.get("reward_mean") is not None)]
    if seen and max(seen) == 0:
        return "every reward was 0, so there was nothing to learn from"
    shares = [step.get("zero_variance_share") for step in steps]
    if None not in shares and min(shares) >= 1:
        return "no group held both passes and failures, so every group was filtered out"
    norms = [step.get("update_norm") for step in steps]
    if None not in norms and max(norms) == 0:
        return "no weight moved (the update norm was 0 in every step)"
    return ""
