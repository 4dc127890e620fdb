"""The probes of a machine where nothing is installed: from a checkout, by any Python from 3.11 on::

    python3 -m leonardo.probes --gpus 2

Prints JSON. Exit code 0: a driver of sandboxes serves, and nothing is missing. With ``--gpus`` the Python that runs it
needs PyTorch; all else needs the standard library alone.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from leonardo.files import machine
from leonardo.probes import gpus, host
from leonardo.probes.probe import Result, healthy
from leonardo.sandbox.drivers import survey


def main() -> int:
    """Try everything, print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=0, help="how many this node should have")
    parser.add_argument("--seconds", type=float, default=90.0, help="in which they have to meet")
    parser.add_argument("--alone", action="store_true", help="the GPUs' probes without the others")
    given = parser.parse_args()
    results: list[Result] = []
    if given.gpus:
        results.append(gpus.gpus(given.gpus))
    if given.gpus > 1:
        results.append(gpus.nccl(Path(sys.executable), given.gpus, seconds=given.seconds))
    if not given.alone:
        results += [probe() for probe in host.PROBES]
    drivers = {} if given.alone else survey()
    well = healthy(results, given.alone or any(finding.serves for finding in drivers.values()))
    figures = {
        "drivers": {label: asdict(finding) for label, finding in drivers.items()},
        "findings": [asdict(result) for result in results],
    }
    pins = {"user": os.getuid(), "node": os.uname().nodename}
    try:
        print(json.dumps({"ok": well, "figures": figures, "pins": pins, "machine": machine()}, indent=2), flush=True)
    except OSError as error:
        print(f"leonardo: what was found cannot be written ({error.strerror})", file=sys.stderr)
        os._exit(3)  # or the interpreter would try once more at its end
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
