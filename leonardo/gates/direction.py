"""Did training help, by a rule written down before the run: where the paired interval lies, and nothing else."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Direction = Literal["credible positive direction", "none shown", "harmful", "too few pairs"]


class DirectionRule(BaseModel):
    """The rule of a stage file.

    Attributes:
        margin: of pass rate; the 95 % interval of trained minus base, paired over the held-out tasks, has to lie above
            it to be a credible positive direction, and below its negative to be harmful. 0: any difference.
        pairs: held-out tasks with a valid attempt on both sides that are needed at least.
        reason: why these, in a sentence.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    margin: float = Field(default=0.0, ge=0)
    pairs: int = Field(ge=2)
    reason: str = Field(min_length=1)

    def judge(self, interval: tuple[float, float] | None, pairs: int) -> Direction:
        """The direction that a paired interval shows."""
        if interval is None or pairs < self.pairs:
            return "too few pairs"
        low, high = interval
        if low > self.margin:
            return "credible positive direction"
        return "harmful" if high < -self.margin else "none shown"
