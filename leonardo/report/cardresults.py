"""What a card says was measured: of these weights alone, and over the seeds of a study where the ledger has them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from leonardo import evidence
from leonardo.evaluation import Comparison, EvaluationRecord, compare
from leonardo.evaluation.compare import differences
from leonardo.evaluation.records import FamilyComparison
from leonardo.evaluation.verdict import MINIMUM_PAIRS, points
from leonardo.report.cardrecords import Spread, read_evaluation

LUCK = "How much of a difference is one training run's luck"
"""Begins the limit of a run that is one of several, see :func:`leonardo.stages.transferfile.limits_of`."""


@dataclass(frozen=True)
class Measured:
    """An evaluation of the weights; against those that training began with, task by task, where these were evaluated.

    Attributes:
        what: which tasks, as the run calls them.
        over_seeds: the difference over the study's seeds, in words; "" where the ledger has none.
    """

    what: str
    record: EvaluationRecord
    comparison: Comparison | None
    over_seeds: str = ""

    @property
    def kinds(self) -> list[str]:
        """Of its tasks."""
        return sorted({task.family for task in self.record.tasks})

    @property
    def by_kind(self) -> list[FamilyComparison]:
        """The comparison for each kind; none where kinds have too few tasks to tell."""
        found = self.comparison.families if self.comparison else []
        enough = len(found) > 1 and all(kind.difference.pairs >= MINIMUM_PAIRS for kind in found)
        return found if enough else []


def measured(
    run: Path, place: Path, weights: str, base: str, seeds: evidence.Evidence | None, *, is_trained: bool
) -> list[Measured]:
    """The evaluations of the checkpoint at ``place`` in the run's folder; ``seeds`` is the study's entry over seeds.

    Other checkpoints have the same weights where training moved nothing: what is called by this one's place is its
    own, and where nothing is, all but the base's.
    """
    records = [read_evaluation(path) for path in sorted(run.glob("evaluation-*.json"))]
    prefix = "".join(f"{part}-" for part in place.parts[:-1])
    same = [each for each in records if each.weights == weights and not (is_trained and each.model == "base")]
    own = [each for each in same if each.model.startswith(prefix)] or same
    found = []
    for record in own:
        before = (
            other
            for other in records
            if base and other.weights == base and other not in own and not any(differences(other, record))
        )
        other = next(before, None)
        name = record.model.removeprefix(prefix)
        what = "held-out tasks" if name in ("base", "trained") else name
        comparison = compare(other, record) if other is not None else None
        found.append(Measured(what, record, comparison, _over_seeds(seeds, place, name)))
    return found


def entry_over_seeds(run: Path, entries: Sequence[evidence.Evidence]) -> evidence.Evidence | None:
    """The last entry over a study's seeds that came from records of this run as they are."""
    records = set(evidence.record_files(run.parent, run.glob("comparison-*.json")))
    over = (each for each in reversed(entries) if each.name.endswith("-seeds") and records & set(each.records))
    return next(over, None) if records else None


def _over_seeds(entry: evidence.Evidence | None, place: Path, on: str) -> str:
    """The cell's mean and standard deviation, as :func:`leonardo.stages.transferseeds.figures_of` writes them."""
    effects = entry.figures.get("effects") if entry else None
    if entry is None or not isinstance(effects, dict) or len(place.parts) < 2:
        return ""
    try:
        cell = Spread.model_validate(effects.get(f"{place.parts[0]}: {place.parts[1]} on {on}"))
    except ValidationError:
        return ""
    return f"mean {points(cell.mean)}, standard deviation {100 * cell.spread:.1f}, of {len(cell.differences)} seeds"
