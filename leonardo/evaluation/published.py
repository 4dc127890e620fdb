"""Published results as data (``launch/published``), to stand beside our own, and never without what differs."""

from pathlib import Path

from pydantic import JsonValue

from leonardo.errors import InputError
from leonardo.settings import Settings, find_settings, read_settings


class Benchmark(Settings):
    """How a column of a published table was made.

    Attributes:
        name: of the column.
        note: what else has to be known, in a sentence.
        settings: by the names of an evaluation record's pins; ``None`` is what the sources do not say.
    """

    name: str
    note: str
    settings: dict[str, JsonValue]


class PublishedResult(Settings):
    """A figure: mean and standard error over runs, in percent."""

    size: str
    model: str
    trained: bool
    benchmark: str
    percent: float
    error: float | None = None


class PublishedTable(Settings):
    """A published table; ``sources`` are addresses."""

    name: str
    sources: tuple[str, ...]
    benchmarks: tuple[Benchmark, ...]
    results: tuple[PublishedResult, ...]

    def benchmark(self, name: str) -> Benchmark:
        """The column of that name. Raises InputError."""
        for known in self.benchmarks:
            if known.name == name:
                return known
        names = ", ".join(known.name for known in self.benchmarks)
        raise InputError(f"{self.name} was not published on {name}", f"Known: {names}")


def load_published(name: str | Path = "tmax") -> PublishedTable:
    """Read a table: a name in ``launch/published`` or a path. Raises InputError that names file and setting."""
    path = find_settings(name, "published")
    table = read_settings(path, PublishedTable)
    for result in table.results:
        table.benchmark(result.benchmark)
    return table
