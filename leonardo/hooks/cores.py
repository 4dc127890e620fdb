"""Sandboxes stay off the cores that a job keeps for learner and rollout engines (``LEONARDO_RESERVED_CORES``)."""

import os

RESERVED = "LEONARDO_RESERVED_CORES"


def keep_off_reserved_cores() -> None:
    """Bind this process, and with it every sandbox that it starts, to the cores after the reserved ones.

    At least one core is left; without the variable nothing changes.
    """
    reserved = int(os.environ.get(RESERVED) or 0)
    if reserved <= 0:
        return
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[min(reserved, len(cores) - 1) :])
