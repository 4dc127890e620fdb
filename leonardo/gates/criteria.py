"""Pass criteria as data: a figure, a bound, and the reason for it. A stage file lists them; a gate applies them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Criterion(BaseModel):
    """A bound on one figure.

    Attributes:
        figure: its name.
        least, most: inclusive bounds of a number.
        equals: what it has to be, where it is no number that varies.
        reason: why this bound, in a sentence.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    figure: str
    least: float | None = None
    most: float | None = None
    equals: bool | int | str | None = None
    reason: str = Field(min_length=1)

    @model_validator(mode="after")
    def _has_a_bound(self) -> Self:
        if self.least is None and self.most is None and self.equals is None:
            raise ValueError(f"{self.figure}: give least, most or equals")
        if self.equals is not None and (self.least is not None or self.most is not None):
            raise ValueError(f"{self.figure}: equals goes with neither least nor most")
        return self

    def asks(self) -> str:
        """The bound in words."""
        if self.equals is not None:
            return f"is {_shown(self.equals)}"
        bounds = [f"at least {self.least:g}"] if self.least is not None else []
        bounds += [f"at most {self.most:g}"] if self.most is not None else []
        return " and ".join(bounds)


@dataclass(frozen=True)
class Finding:
    """What came of a criterion. ``value`` is None where the figure was not measured, which is no pass."""

    criterion: Criterion
    value: Any
    ok: bool

    @property
    def sentence(self) -> str:
        """For people: figure, value, bound, and the reason where it is not met."""
        value = "was not measured" if self.value is None else f"is {_shown(self.value)}"
        text = f"{self.criterion.figure} {value} (asked: {self.criterion.asks()})"
        return text if self.ok else f"{text}: {self.criterion.reason}"


def apply(criteria: Sequence[Criterion], figures: Mapping[str, Any]) -> list[Finding]:
    """Hold ``figures`` to ``criteria``. A figure that is absent or None meets none."""
    return [
        Finding(criterion, value := figures.get(criterion.figure), _meets(criterion, value)) for criterion in criteria
    ]


def require_figures(criteria: tuple[Criterion, ...], known: Collection[str]) -> tuple[Criterion, ...]:
    """``criteria``, each about a figure that there is. Raises ValueError, for a settings file's validator."""
    for criterion in criteria:
        if criterion.figure not in known:
            raise ValueError(f"no figure {criterion.figure}; there are {', '.join(known)}")
    return criteria


def _meets(criterion: Criterion, value: Any) -> bool:
    if value is None:
        return False
    if criterion.equals is not None:
        return type(value) is type(criterion.equals) and value == criterion.equals
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return (criterion.least is None or value >= criterion.least) and (criterion.most is None or value <= criterion.most)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
