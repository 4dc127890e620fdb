"""What a check has found: an id that the docs explain, one line that says what is wrong, and what to do."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """Something that stands in a job's way.

    Attributes:
        id: of the kind; docs/launch.md explains each.
        what: what is wrong, and where.
        remedy: what to do.
    """

    id: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.id}: {self.what}. {self.remedy}"
