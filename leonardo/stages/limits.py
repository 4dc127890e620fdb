"""What ends a training run before its last step: the stage's bounds on time and cost, and its early-stop rules."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from leonardo.gates.earlystop import Stopped, stopped_by, unjudged
from leonardo.gates.steps import StepRecord
from leonardo.site import Cost
from leonardo.stages.definition import Stage

NONE = "none"


class RunLimits:
    """Looks at each step record, and says when to stop.

    Args:
        stage: with its bounds and rules.
        cost: what an hour of the site costs.
        records: of the run's steps so far, where it goes on after an interruption; their time counts.
        clock: seconds, for tests.
    """

    def __init__(
        self, stage: Stage, cost: Cost, records: Sequence[StepRecord] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stage, self._cost, self._clock = stage, cost, clock
        self._records = list(records)
        self._before = sum(record.times.get("step", 0.0) for record in records)
        self._started = clock()
        self.stopped: Stopped | None = None
        self.bound = NONE
        self.reason = ""

    def look(self, record: StepRecord) -> bool:
        """Take in a step. Returns whether to stop after it; :attr:`reason` says why."""
        # a run that went on from a checkpoint may make a step anew
        self._records = [each for each in self._records if each.step < record.step] + [record]
        self.stopped = stopped_by(self._stage.early_stop, self._records)
        if self.stopped:
            self.reason = f"early stop, {self.stopped.sentence}"
        elif bound := self._bound():
            self.bound = bound
            self.reason = f"bound reached after step {record.step}: {bound}"
        return bool(self.reason)

    def _bound(self) -> str:
        bounds = self._stage.bounds
        if bounds.minutes is not None and self.hours * 60 >= bounds.minutes:
            return f"{bounds.minutes:g} minutes of training"
        if bounds.cost is not None and self.spent >= bounds.cost:
            return f"{bounds.cost:g} {self._cost.unit}"
        return ""

    @property
    def hours(self) -> float:
        """Of training, those before an interruption included."""
        return (self._before + self._clock() - self._started) / 3600

    @property
    def spent(self) -> float:
        """In the site's unit."""
        return self.hours * self._cost.units()

    def figures(self) -> dict[str, Any]:
        """For the verdict."""
        return {
            "early_stop": self.stopped.rule.figure if self.stopped else NONE,
            "bound_reached": self.bound,
            "rules_not_judged": unjudged(self._stage.early_stop, self._records),
            "cost": round(self.spent, 4),
            "cost_unit": self._cost.unit,
        }
