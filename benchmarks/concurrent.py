"""How long resets and commands take with many sandboxes at once: ``python -m benchmarks.concurrent --sandboxes 64``.

Each of several processes, as upstream's environments have one each, runs whole episodes in its sandboxes, one after the
other, for some seconds. Prints and writes (out/bench-concurrent.json) the median and the 95th percentile in ms.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path

from benchmarks.workload import Episodes, p50, p95, prepare_at_once
from leonardo.files import write_verdict
from leonardo.sandbox import drivers
from leonardo.sandbox.driver import LayerStack

Times = dict[str, list[float]]


def work(
    archive: Path, sandboxes: int, seconds: float, barrier: Barrier, results: "multiprocessing.Queue[Times]"
) -> None:
    """One process: its own driver and base, ``sandboxes`` threads with a sandbox each."""
    with tempfile.TemporaryDirectory() as name, drivers.choose().driver as driver:
        Path(name).chmod(0o755)
        base = Path(name) / "base"
        driver.unpack(archive, base)
        try:
            runs = [Episodes(lambda: driver.backend(LayerStack(base)), prepare_at_once) for _ in range(sandboxes)]
            for run in runs[:1]:
                run.run()
                run.times = {kind: [] for kind in run.times}
            barrier.wait(300)
            end = time.monotonic() + seconds

            def repeat(run: Episodes) -> None:
                while time.monotonic() < end:
                    run.run()

            with ThreadPoolExecutor(sandboxes) as pool:
                list(pool.map(repeat, runs))
        finally:
            driver.remove(base)
    results.put({kind: [value for run in runs for value in run.times[kind]] for kind in runs[0].times})


def measure(archive: Path, processes: int, sandboxes: int, seconds: float) -> dict[str, float]:
    """Figures of ``sandboxes`` in all, spread over ``processes``."""
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(processes), context.Queue()
    share = sandboxes // processes
    workers = [context.Process(target=work, args=(archive, share, seconds, barrier, results)) for _ in range(processes)]
    for worker in workers:
        worker.start()
    try:
        found: list[Times] = [results.get(timeout=seconds + 300) for _ in workers]
    finally:
        for worker in workers:
            worker.join(10)
            worker.kill()
    times = {kind: [value for part in found for value in part[kind]] for kind in found[0]}
    figures = {
        f"{kind}_ms_{name}": of(values) for kind, values in times.items() for name, of in (("p50", p50), ("p95", p95))
    }
    return figures | {"episodes": len(times["episode"]), "episodes_per_s": len(times["episode"]) / seconds}


def main() -> int:
    """Measure in few and in many processes, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="archive of a root file system")
    parser.add_argument("--sandboxes", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--out", type=Path, default=Path("out"))
    given = parser.parse_args()
    with drivers.choose().driver as driver:
        pins = {"driver": driver.name, "degraded": driver.degraded, "sandboxes": given.sandboxes}
    figures: dict[str, float] = {}
    for processes in sorted({1, min(given.sandboxes, os.cpu_count() or 1), given.sandboxes}):
        found = measure(given.base.absolute(), processes, given.sandboxes, given.seconds)
        print(f"{given.sandboxes} sandboxes in {processes} processes, {os.cpu_count()} cores:")
        for name, value in found.items():
            print(f"  {name} {value:.2f}")
        figures |= {f"processes_{processes}_{name}": value for name, value in found.items()}
        write_verdict(given.out / "bench-concurrent.json", True, figures, pins)
    return 0


if __name__ == "__main__":
    sys.exit(main())
