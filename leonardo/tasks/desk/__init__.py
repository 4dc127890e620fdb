"""Desk tasks: a corpus of our own in the data set's shape, small enough for a tiny model to learn to act on."""

from leonardo.tasks.desk.corpus import (
    FAMILIES,
    Attempt,
    DeskTask,
    Kind,
    Split,
    describe,
    generate,
    split_of,
    write_rows,
)

__all__ = ["FAMILIES", "Attempt", "DeskTask", "Kind", "Split", "describe", "generate", "split_of", "write_rows"]
