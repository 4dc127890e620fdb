"""A file in a commit of upstream, as the stack's files name it; read without git."""

from dataclasses import dataclass

ABSENT = "0" * 40
"""The blob id of a file that is not there, as in a patch's index line."""

ABSENT_MODE = "000000"


@dataclass(frozen=True)
class Entry:
    """A file in a commit."""

    mode: str
    blob: str


NO_FILE = Entry(ABSENT_MODE, ABSENT)
