"""Counters and histograms of sandboxes, as Prometheus text and as JSON."""

import bisect
import contextlib
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from leonardo.errors import InfrastructureError
from leonardo.sandbox.backend import SandboxOOMError

BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds of the histograms' buckets, in seconds."""
PREFIX = "leonardo_sandbox"

_HELP = {
    "seconds": "Duration of sandbox operations that ended well.",
    "failures_total": "Sandbox operations that failed, by operation and class.",
    "events_total": "What else happened, by event.",
    "now": "Current numbers, by state.",
}


@dataclass
class _Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


class Metrics:
    """May be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._durations: defaultdict[str, _Histogram] = defaultdict(_Histogram)
        self._failures: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._events: defaultdict[str, int] = defaultdict(int)
        self._levels: defaultdict[str, int] = defaultdict(int)

    @contextlib.contextmanager
    def measure(self, operation: str) -> Iterator[None]:
        """Note how long the block takes, or the class of its failure."""
        begun = time.perf_counter()
        try:
            yield
        except BaseException as error:
            with self._lock:
                self._failures[operation, failure_class(error)] += 1
            raise
        with self._lock:
            self._durations[operation].add(time.perf_counter() - begun)

    def count(self, event: str) -> None:
        """Something happened once more."""
        with self._lock:
            self._events[event] += 1

    def move(self, state: str, by: int) -> None:
        """So many more (or less) are in a state now."""
        with self._lock:
            self._levels[state] += by

    def to_json(self) -> dict[str, Any]:
        """``durations`` (operation -> count, sum and cumulative buckets by upper bound), ``failures`` (operation ->
        class -> count), ``events`` and ``now`` (name -> count)."""
        with self._lock:
            failures: defaultdict[str, dict[str, int]] = defaultdict(dict)
            for (operation, name), number in self._failures.items():
                failures[operation][name] = number
            return {
                "durations": {
                    operation: {
                        "count": sum(histogram.counts),
                        "sum": histogram.total,
                        "buckets": dict(zip(_labels(), itertools.accumulate(histogram.counts), strict=True)),
                    }
                    for operation, histogram in self._durations.items()
                },
                "failures": dict(failures),
                "events": dict(self._events),
                "now": dict(self._levels),
            }

    def prometheus(self) -> str:
        """The text exposition format, version 0.0.4."""
        state = self.to_json()
        lines = _heading("seconds", "histogram")
        for operation, histogram in sorted(state["durations"].items()):
            label = f'operation="{operation}"'
            lines += [
                f'{PREFIX}_seconds_bucket{{{label},le="{bound}"}} {number}'
                for bound, number in histogram["buckets"].items()
            ]
            lines.append(f"{PREFIX}_seconds_sum{{{label}}} {histogram['sum']:.6f}")
            lines.append(f"{PREFIX}_seconds_count{{{label}}} {histogram['count']}")
        lines += _heading("failures_total", "counter")
        for operation, classes in sorted(state["failures"].items()):
            for name, number in sorted(classes.items()):
                lines.append(f'{PREFIX}_failures_total{{operation="{operation}",class="{name}"}} {number}')
        for metric, kind, label, values in (
            ("events_total", "counter", "event", state["events"]),
            ("now", "gauge", "state", state["now"]),
        ):
            lines += _heading(metric, kind)
            lines += [f'{PREFIX}_{metric}{{{label}="{name}"}} {number}' for name, number in sorted(values.items())]
        return "\n".join(lines) + "\n"


def failure_class(error: BaseException) -> str:
    """The class under which a failure is counted."""
    match error:
        case InfrastructureError():
            return error.failure.value
        case SandboxOOMError():
            return "out-of-memory"
        case FileNotFoundError() | IsADirectoryError():
            return "no-such-file"
        case Exception():
            return type(error).__name__
        case _:
            return "interrupted"


def _labels() -> list[str]:
    return [*(f"{bound:g}" for bound in BOUNDS), "+Inf"]


def _heading(metric: str, kind: str) -> list[str]:
    return [f"# HELP {PREFIX}_{metric} {_HELP[metric]}", f"# TYPE {PREFIX}_{metric} {kind}"]
