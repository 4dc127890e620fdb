"""In a job, on each node that has sandboxes: unpacks the layers of the data set's rows while the trainer loads.

Usage, by the job's script: ``python -m leonardo.jobs.unpack RUN ROWS``; ``ROWS`` is the data set's JSONL file. Site,
store, folder and budget of the node come from the variables that :mod:`leonardo.hooks.sandbox` has. It runs at the
lowest priority, off the reserved cores, and never fails the job: what it does not unpack is unpacked when a sandbox
asks for it. What it did is an event, and ``unpacked-<node>.json`` in the run's folder. Told to end, it ends, and says
so there.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from leonardo.assets.sharedfiles import SharedFiles
from leonardo.assets.staging import Staged, stage
from leonardo.errors import LeonardoError
from leonardo.files import write_json
from leonardo.hooks.cores import keep_off_reserved_cores
from leonardo.hooks.sandbox import BUDGET_VARIABLE, SCHEME, SITE_VARIABLE
from leonardo.jobs.folder import EVENTS
from leonardo.jobs.unpacked import unpacked_file
from leonardo.sandbox.drivers import open_driver
from leonardo.site import load_site

_LOWEST_PRIORITY = 19


class _ToldToEnd(BaseException):
    """A signal came."""


def states_of(rows: bytes) -> list[str]:
    """The prepared states of the data set's rows, once for each row that has one. Raises ValueError."""
    found: list[str] = []
    for line in rows.splitlines():
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError("a row is no object")
        found += _images(row.get("env_config") or {})
    return found


def unpack(rows: Path, staged: Staged) -> None:
    """Unpack what ``rows`` stand on; what was done is in ``staged``. Raises LeonardoError, OSError, ValueError."""
    site = load_site(os.environ.get(SITE_VARIABLE) or "desk")
    if site.node_cache is None:
        staged.reason = "the site names no node_cache"
        return
    budget = float(os.environ.get(BUDGET_VARIABLE) or 0)
    shared = SharedFiles(site.cache / "assets")
    try:
        states = states_of(shared.read(rows))
        with open_driver() as driver:
            stage(shared, site.node_cache, driver, states, int(budget * (1 << 30)) or None, staged)
    finally:
        staged.operations, staged.read_bytes = shared.operations, shared.bytes


def _images(config: Any) -> Iterator[str]:
    environments = config.get("env_configs") or () if isinstance(config, dict) else config
    if not isinstance(environments, list | tuple) or not all(isinstance(each, dict) for each in environments):
        raise ValueError("a row's env_config is no list of environments")
    for environment in environments:
        image = str(environment.get("image", ""))
        if image.startswith(SCHEME):
            yield image.removeprefix(SCHEME)


def _note(run: Path, node: str, staged: Staged) -> None:
    if not run.is_dir():
        raise OSError(f"{run} is gone")
    write_json(unpacked_file(run, node), staged.as_json())
    event = {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "job": os.environ.get("SLURM_JOB_ID", ""),
        "task": "",
        "restart": int(restart) if (restart := os.environ.get("SLURM_RESTART_COUNT", "0")).isdecimal() else 0,
        "event": f"{node}: {staged.sentence()}",
        "code": None,
    }
    with (run / EVENTS).open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(event) + "\n")
    print(f"job {event['job']}: {event['event']}", flush=True)


def main(arguments: list[str]) -> int:
    """Entry point."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        raise _ToldToEnd

    os.nice(_LOWEST_PRIORITY)
    keep_off_reserved_cores()
    run, node, staged = Path(arguments[0]), socket.gethostname(), Staged()
    try:
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, end)
        unpack(Path(arguments[1]).absolute(), staged)
    except _ToldToEnd:
        staged.reason = "it was told to end"
    except (LeonardoError, OSError, ArithmeticError, ValueError, LookupError, TypeError, RecursionError) as error:
        staged.reason = f"it ended early: {' '.join(str(error).split())[:200]}"
    try:
        _note(run, node, staged)
    except OSError as error:
        print(f"{node}: {staged.sentence()} (which cannot be noted: {error})", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
