"""What each node of a job is asked before any work: is all there that the job needs, offline? Then makes scratch, and
removes that of jobs that have ended: one that is cancelled is given no further step to do it on all nodes.

Usage, by the job's script: ``python -m leonardo.jobs.arrive JOB.json SCRATCH [sandboxes]``, the last on nodes for
sandboxes alone. One line for each thing that is missing; exit code 2 where something is, 3 where the node itself falls
short.
"""

import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from leonardo.errors import LeonardoError
from leonardo.hooks.paths import LONGEST_SCRATCH
from leonardo.jobs.folder import read_plan
from leonardo.jobs.scratch import leftovers, make, remove

_GIB = 1 << 30


def missing(plan: dict[str, Any]) -> Iterator[str]:
    """What is not there of what the plan names, a line each."""
    for name, remedy in plan.get("needs", {}).items():
        path = Path(name)
        if not path.exists():
            yield f"{name} is not there. {remedy}"
        elif path.is_dir() and not any(path.iterdir()):
            yield f"{name} is empty. {remedy}"


def shortcomings(asked: dict[str, Any], scratch: Path) -> Iterator[str]:
    """What this node lacks of what is ``asked`` of it, a line each. Makes ``scratch``."""
    if len(os.fsencode(scratch)) > LONGEST_SCRATCH:
        yield f"{scratch} is longer than {LONGEST_SCRATCH} bytes, too long for sockets"
        return
    try:
        make(scratch)
    except OSError as error:
        yield f"{scratch} cannot be made ({error.strerror})"
        return
    free = shutil.disk_usage(scratch).free / _GIB
    if free < asked.get("tmp", 0.0):
        yield f"{scratch.parent} has {free:.1f} GiB free, the job needs {asked['tmp']:g}"
    if (wanted := asked.get("gpus", 0)) and (seen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        count = len([entry for entry in seen.split(",") if entry])
        if count < wanted:
            yield f"{count} GPUs are visible, the job needs {wanted}"


def _make_ready(run: Path) -> None:
    """Set aside what a trainer that was killed left, and say from where this one goes on; by the first node."""
    if os.environ.get("SLURM_PROCID", "0") != "0":
        return
    from leonardo.engine.upstream.own import STATE, remove_stale_locks
    from leonardo.engine.upstream.state import mend_state, saved_state

    if compiled := os.environ.get("TORCH_EXTENSIONS_DIR"):
        remove_stale_locks(Path(compiled))
    for line in mend_state(run / STATE):
        print(f"job: {line}", flush=True)
    state, steps = saved_state(run / STATE), run / "steps.jsonl"
    if state:
        print(f"job: going on from state {state}", flush=True)
    elif steps.is_file() and steps.stat().st_size:
        print("job: no state was saved before: the trainer begins anew", flush=True)


def main(arguments: list[str]) -> int:
    """Entry point."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    scratch, ready = Path(arguments[1]), False
    try:
        code = _checked(arguments, scratch)
        ready = code == 0
        return code
    except LeonardoError as error:
        print(f"{socket.gethostname()}: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:  # a disk that is full or cannot be written to
        print(f"{socket.gethostname()}: {error.filename or scratch}: {error.strerror}", file=sys.stderr)
        return 3
    finally:
        if not ready:  # a job that is cancelled may be granted no further step here
            remove(scratch)


def _checked(arguments: list[str], scratch: Path) -> int:
    plan = read_plan(Path(arguments[0]).parent)
    if plan.get("ray"):
        _make_ready(Path(plan["folder"]))
    asked = (plan.get("sandboxes") if arguments[2:] == ["sandboxes"] else None) or plan["resources"]
    for path in leftovers(scratch):
        stays = remove(path)
        outcome = f"it cannot be removed: {stays}" if stays else "removed"
        print(f"{socket.gethostname()}: {path} was left by a job that has ended; {outcome}", flush=True)
    lacking, short = list(missing(plan)), list(shortcomings(asked, scratch))
    for line in (*lacking, *short):
        print(f"{socket.gethostname()}: {line}", file=sys.stderr)
    return 2 if lacking else 3 if short else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
