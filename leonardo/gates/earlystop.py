"""When to end a training run before its last step: rules as data, over a window of step records of either engine.

They stand for the instabilities that the reference recipe's authors met: entropy that vanishes or grows, a trust region
that masks most of what would be learnt, answers that grow until the limit cuts them off, and reward that collapses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from leonardo.gates.steps import StepRecord


class StopRule(BaseModel):
    """A bound on the mean of one figure over the last ``window`` steps.

    Attributes:
        figure: of the step record, a number.
        window: steps; a rule says nothing before so many are there, or where one of them lacks the figure.
        least, most: the mean may not be below, or above.
        keeps: the mean may not be below this share of the best mean that any earlier window had.
        reason: why this bound, in a sentence.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    figure: str
    window: int = Field(ge=1)
    least: float | None = None
    most: float | None = None
    keeps: float | None = Field(default=None, gt=0, le=1)
    reason: str = Field(min_length=1)

    @model_validator(mode="after")
    def _can_be_judged(self) -> Self:
        if StepRecord.model_fields.get(self.figure) is None:
            raise ValueError(f"a step record has no {self.figure}")
        if self.least is None and self.most is None and self.keeps is None:
            raise ValueError(f"{self.figure}: give least, most or keeps")
        return self


@dataclass(frozen=True)
class Stopped:
    """A rule that says to stop, and why in a sentence."""

    rule: StopRule
    sentence: str


def stopped_by(rules: Sequence[StopRule], records: Sequence[StepRecord]) -> Stopped | None:
    """The first rule that the records break at their last step; None where none does."""
    for rule in rules:
        means = window_means(rule, records)
        if not means or means[-1] is None:
            continue
        last = means[-1]
        if (asked := _asked(rule, last, [mean for mean in means[:-1] if mean is not None])) is not None:
            return Stopped(
                rule,
                f"step {records[-1].step}: {rule.figure} was {last:.3g} on average of {rule.window} steps "
                f"(asked: {asked}): {rule.reason}",
            )
    return None


def unjudged(rules: Sequence[StopRule], records: Sequence[StepRecord]) -> list[str]:
    """The figures of rules that no record has, so that they could not be judged: the engine does not measure them."""
    figures = dict.fromkeys(rule.figure for rule in rules)
    return [figure for figure in figures if records and all(getattr(record, figure) is None for record in records)]


def window_means(rule: StopRule, records: Sequence[StepRecord]) -> list[float | None]:
    """The mean over each full window, oldest first; None where a step in it lacks the figure."""
    values = [getattr(record, rule.figure) for record in records]
    windows = [values[end - rule.window : end] for end in range(rule.window, len(values) + 1)]
    return [None if None in window else sum(window) / rule.window for window in windows]


def _asked(rule: StopRule, mean: float, earlier: Sequence[float]) -> str | None:
    """The bound that ``mean`` breaks, in words."""
    if rule.least is not None and mean < rule.least:
        return f"at least {rule.least:g}"
    if rule.most is not None and mean > rule.most:
        return f"at most {rule.most:g}"
    if rule.keeps is not None and earlier and mean < rule.keeps * max(earlier):
        return f"at least {rule.keeps:g} of the best before, {max(earlier):.3g}"
    return None
