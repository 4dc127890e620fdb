"""A trainer for tests: counts to N, keeps its count on disk, saves and ends with 143 when it is told to.

Usage: python counter.py FOLDER N [EXIT_CODE]
"""

import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    """Count."""
    folder, goal = Path(sys.argv[1]), int(sys.argv[2])
    state = folder / "count.json"
    seen = json.loads(state.read_text()) if state.exists() else {"count": 0, "starts": []}
    seen["starts"].append([seen["count"], os.environ["SLURM_JOB_ID"], os.uname().nodename])
    told = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    while seen["count"] < goal:
        seen["count"] += 1
        state.with_suffix(".part").write_text(json.dumps(seen))
        state.with_suffix(".part").replace(state)
        print("count", seen["count"], flush=True)
        if told:
            sys.exit(143)
        time.sleep(0.1)
    if len(sys.argv) > 3:
        print("the trainer has had enough", flush=True)
        sys.exit(int(sys.argv[3]))


main()
