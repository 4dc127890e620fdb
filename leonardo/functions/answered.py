"""A single-turn row with a right and a mistaken answer: what demonstrations of it are made of."""

from dataclasses import dataclass
from random import Random

from leonardo.functions.tasks import FunctionTask
from leonardo.rollout.formats import Call


@dataclass(frozen=True)
class AnsweredTask:
    """A row with answers.

    Attributes:
        task: the row as a task.
        right, wrong: calls that pass, and that do not; no calls is the refusal.
    """

    task: FunctionTask
    right: tuple[Call, ...]
    wrong: tuple[Call, ...]

    def attempt(self, random: Random, right: float) -> tuple[tuple[Call, ...], bool]:
        """One demonstration, right with this probability, and whether it is."""
        is_right = random.random() < right
        return (self.right if is_right else self.wrong), is_right
