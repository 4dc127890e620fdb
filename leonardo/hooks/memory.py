"""How much of a GPU's memory a phase of the learner's step takes: PyTorch's own count, by phase."""

from collections.abc import Iterator
from contextlib import contextmanager


class Peak:
    """Bytes that were allocated at most, on this process's GPU; 0 where there is none."""

    held = 0
    highest = 0


@contextmanager
def peak() -> Iterator[Peak]:
    """Count within ``with``; the result is whole at its end. ``held`` is what was allocated at its beginning."""
    import torch

    found = Peak()
    if not torch.cuda.is_initialized():
        yield found
        return
    torch.cuda.reset_peak_memory_stats()
    found.held = torch.cuda.memory_allocated()
    try:
        yield found
    finally:
        found.highest = torch.cuda.max_memory_allocated()
