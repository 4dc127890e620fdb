"""The sizes of a stage's desk corpus."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Corpus:
    """How many tasks of each kind.

    Attributes:
        train, held_out: tasks that are prepared.
        demonstrated: train tasks of which the warm start sees whole demonstrations; 0: all. Runs that share it, and
            ``unprepared``, share their base policy.
        unprepared: train tasks of which the warm start sees the first turn of a demonstration only.
    """

    train: int = 300
    held_out: int = 92
    unprepared: int = 5000
    demonstrated: int = 0
