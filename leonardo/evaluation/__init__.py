"""Base and trained through the same harness, and what may be said about the difference."""

from leonardo.evaluation.compare import compare
from leonardo.evaluation.evaluate import attempt_seed, evaluate, tasks_digest
from leonardo.evaluation.records import (
    Comparison,
    EvaluationRecord,
    RunFacts,
    Substitution,
    TaskResult,
    read_record,
)
from leonardo.evaluation.verdict import Verdict, verdict

__all__ = [
    "Comparison",
    "EvaluationRecord",
    "RunFacts",
    "Substitution",
    "TaskResult",
    "Verdict",
    "attempt_seed",
    "compare",
    "evaluate",
    "read_record",
    "tasks_digest",
    "verdict",
]
