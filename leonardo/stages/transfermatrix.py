"""The matrix of the transfer study: its evaluations, what they show, and what the stage's criteria ask of them."""

from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from leonardo.evaluation import Comparison, EvaluationRecord
from leonardo.evaluation.statistics import Interval, mean_of_few
from leonardo.gates.criteria import Finding
from leonardo.gates.direction import Direction
from leonardo.stages.transferfile import KINDS, Kind, Transfer

BASE = "base"
_GAIN: Direction = "credible positive direction"


@dataclass(frozen=True)
class Effect:
    """A checkpoint against its model's base, on one kind of task."""

    model: str
    start: str
    on: Kind
    comparison: Comparison
    direction: Direction


@dataclass(frozen=True)
class Gain:
    """What the control's trainings changed on its own kind: the mean of their differences, with its interval."""

    trainings: int
    mean: float | None
    interval: Interval | None
    direction: Direction


@dataclass
class Matrix:
    """All cells.

    Attributes:
        records: (model, start, kind) -> evaluation.
        effects: of every trained checkpoint.
        signals: (model, start) -> what its training showed, held to the stage's criteria.
    """

    records: dict[tuple[str, str, Kind], EvaluationRecord] = field(default_factory=dict)
    effects: list[Effect] = field(default_factory=list)
    signals: dict[tuple[str, str], list[Finding]] = field(default_factory=dict)

    def effect(self, model: str, start: str, on: Kind) -> Effect:
        """One of them."""
        return next(each for each in self.effects if (each.model, each.start, each.on) == (model, start, on))

    def control(self, stage: Transfer) -> Gain:
        """Of one training by the interval over tasks, of several by that over trainings."""
        kind = stage.control.kind
        found = [self.effect(stage.models[0], start, kind) for start in stage.control.starts]
        values = [value for each in found if (value := each.comparison.difference.value) is not None]
        if len(found) == 1:
            return Gain(1, values[0] if values else None, found[0].comparison.difference.interval, found[0].direction)
        if len(values) < len(found):
            return Gain(len(found), None, None, "none shown")
        interval = mean_of_few(values)
        pairs = min(each.comparison.difference.pairs for each in found)
        return Gain(len(found), mean(values), interval, stage.rule.judge(interval, pairs))

    def figures(self, stage: Transfer) -> dict[str, Any]:
        """What the stage's criteria ask for."""
        signal = {
            kind: sum(all(finding.ok for finding in self.signals[model, kind]) for model in stage.models)
            for kind in KINDS
        }
        learns = sum(self.effect(model, kind, kind).direction == _GAIN for model in stage.models for kind in KINDS)
        wanted = (len(stage.models) * (1 + len(KINDS)) + stage.control.trainings) * len(KINDS)
        return {
            "cells": len(self.records),
            "cells_missing": wanted - sum(record.pass_rate is not None for record in self.records.values()),
            "terminal_signal": signal["terminal"],
            "functions_signal": signal["functions"],
            "trained_learns": learns,
            "control_learns": self.control(stage).direction == _GAIN,
            "effects": {
                f"{each.model}: {each.start} on {each.on}": {
                    "base": each.comparison.base.value,
                    "trained": each.comparison.trained.value,
                    "difference": each.comparison.difference.value,
                    "interval": list(each.comparison.difference.interval or ()),
                    "pairs": each.comparison.difference.pairs,
                    "direction": each.direction,
                }
                for each in self.effects
            },
        }
