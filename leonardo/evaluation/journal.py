"""What is finished of an evaluation, a line an attempt, so that a killed one goes on and repeats nothing.

The first line holds the pins. An attempt stands in it once it has a verdict; one that the infrastructure lost does not,
so the next run makes up for it.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from leonardo.errors import FailureClass, InputError
from leonardo.files import flat
from leonardo.holding import taken


@dataclass(frozen=True)
class Attempt:
    """A finished attempt, as :func:`leonardo.evaluation.evaluate` takes it; ``trajectory`` is its ATIF document."""

    task_id: str
    seed: int
    reward: float | None
    failure: FailureClass | None
    trajectory: Mapping[str, Any]


class Journal:
    """The file of finished attempts at ``path``. A context manager; one process at a time.

    Raises:
        InputError: it belongs to another evaluation (the pin is named), another process writes it, or it was edited.
    """

    def __init__(self, path: Path, pins: Mapping[str, Any]) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = path.open("a+b")
        try:
            self._take(pins)
        except BaseException:
            self._stream.close()
            raise

    def _take(self, pins: Mapping[str, Any]) -> None:
        if not taken(self._stream):
            raise InputError(f"{self.path} is being written", "Wait for the other evaluation, or name another")
        self._stream.seek(0)
        content = self._stream.read()
        whole = content[: content.rfind(b"\n") + 1]  # what a kill cut off was no attempt
        self._stream.truncate(len(whole))
        lines = whole.splitlines()
        try:
            header, *attempts = [json.loads(line) for line in lines] or [None]
            self.finished = {(made["task_id"], made["seed"]): _attempt(made) for made in attempts}
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{self.path} is no journal of attempts", "Remove it, or name another --record") from error
        if header is None:
            self._write({"pins": pins})
        else:
            self._require_same(header.get("pins", {}), pins)

    def add(self, attempt: Attempt) -> None:
        """Write a finished attempt; it is on the disk when this returns. One without a verdict is left out."""
        if attempt.reward is None:
            return
        self._write(asdict(attempt))
        self.finished[attempt.task_id, attempt.seed] = attempt

    def _write(self, value: Any) -> None:
        self._stream.write(json.dumps(value, ensure_ascii=False, allow_nan=False).encode() + b"\n")
        self._stream.flush()
        os.fsync(self._stream.fileno())

    def _require_same(self, theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
        left, right = flat(theirs), flat(json.loads(json.dumps(ours)))
        for name in sorted(left.keys() | right.keys()):
            if left.get(name) != right.get(name):
                raise InputError(
                    f"{self.path} is of another evaluation: {name} was {left.get(name)} and is {right.get(name)}",
                    "Remove it, or name another --record",
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stream.close()


def _attempt(values: dict[str, Any]) -> Attempt:
    failure = values["failure"]
    return Attempt(**values | {"failure": FailureClass(failure) if failure else None})
