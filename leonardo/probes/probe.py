"""A probe and what it finds."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "degraded", "missing"]
"""``degraded``: it goes on without, and says what that costs. ``missing``: what needs it cannot be run here."""


@dataclass(frozen=True)
class Result:
    """What a probe found.

    Attributes:
        id: of the probe; docs/doctor.md explains each.
        state: whether it is there.
        what: what was seen, in a line.
        costs: what its absence means; "" where it is there.
        remedy: what to do; "" where nothing is to be done.
    """

    id: str
    state: State
    what: str
    costs: str = ""
    remedy: str = ""


Probe = Callable[[], Result]


def ok(name: str, what: str) -> Result:
    """There."""
    return Result(name, "ok", what)


def healthy(results: Iterable[Result], serves: bool) -> bool:
    """Nothing is missing and a driver of sandboxes serves.

    Without user namespaces another driver may serve: what the drivers themselves say decides.
    """
    return serves and not any(result.state == "missing" and result.id != "user-namespaces" for result in results)
