"""How long sandbox operations took: the latest of each kind, in bounded memory."""

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

MOST_KEPT = 10_000
"""Values of each kind; older ones go."""


class Timings:
    """Milliseconds by kind (``start``, ``command``, ``destroy``, ...). May be used from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=MOST_KEPT))
        self._counts: defaultdict[str, int] = defaultdict(int)

    def record(self, kind: str, milliseconds: float) -> None:
        """Note one duration."""
        with self._lock:
            self._values[kind].append(milliseconds)
            self._counts[kind] += 1

    @contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        """Note how long the block takes, if it ends well."""
        begun = time.perf_counter()
        yield
        self.record(kind, (time.perf_counter() - begun) * 1000)

    def summary(self) -> dict[str, dict[str, float]]:
        """For each kind: ``count`` (of all), ``p50`` and ``p95`` in milliseconds (of those kept)."""
        with self._lock:
            values = {kind: sorted(items) for kind, items in self._values.items()}
            counts = dict(self._counts)
        return {
            kind: {"count": counts[kind], "p50": _percentile(items, 0.50), "p95": _percentile(items, 0.95)}
            for kind, items in values.items()
        }


def _percentile(ordered: list[float], share: float) -> float:
    """Nearest rank."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
