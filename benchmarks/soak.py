"""Thousands of episodes while helpers, holders and sandboxes are killed at random: nothing wrong, nothing left.

An episode starts a sandbox, looks that it is clean, writes, runs, reads and compares. One in a hundred kills, with
SIGKILL and at a random step, a helper, a holder or the sandbox itself; what then fails must be an infrastructure error
that names a cause. At the end there must be as many processes, descriptors, mounts, control groups and files as before.

Writes out/soak.json; figures: episodes, wrong, leftovers, unclassified. The same seed makes the same draws.
"""

import argparse
import collections
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from leonardo.errors import InfrastructureError, LeonardoError
from leonardo.files import write_verdict
from leonardo.sandbox.backend import ExecutionResult, SandboxBackend
from leonardo.sandbox.cgroups import PREFIX
from leonardo.sandbox.driver import LayerStack, Limits
from leonardo.sandbox.drivers import choose
from leonardo.sandbox.guard import TITLE
from leonardo.sandbox.namespaces import NamespacesDriver

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the tests' small root serves here, too
from tests.rootfs import build_root_archive

KILL_SHARE = 0.01
VICTIMS = ("helper", "holder", "sandbox")
PATIENCE = 5.0
"""Seconds within which what was killed must be gone."""
MOST_GROWTH = 32 << 20
"""Bytes of this process's own memory that may come and go without being called a leak."""
LIMITS = Limits(disk=32 << 20, memory=256 << 20, processes=64, output=10_000)


@dataclass
class Tally:
    """What happened; ``failures`` counts classified ones by cause."""

    episodes: int = 0
    kills: collections.Counter[str] = field(default_factory=collections.Counter)
    failures: collections.Counter[str] = field(default_factory=collections.Counter)
    wrong: list[str] = field(default_factory=list)
    unclassified: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)


class WrongResultError(Exception):
    """An episode got something else than what it asked for."""


class Soak:
    """One run.

    Args:
        driver, stack: what episodes run on.
        seed: governs tokens and kills.
        marker: a text in the command lines of what sandboxes leave running.
    """

    def __init__(self, driver: NamespacesDriver, stack: LayerStack, seed: int, marker: str) -> None:
        self._driver, self._stack, self._seed, self._marker = driver, stack, seed, marker
        self._numbers = iter(range(sys.maxsize))
        self.tally = Tally()
        self.stop = threading.Event()

    def work(self, most: int, end: float, advance: Callable[[], None]) -> None:
        """Episodes until there were ``most``, or until ``end`` on the monotonic clock."""
        backend = self._driver.backend(self._stack, timeout=30, limits=LIMITS)
        while not self.stop.is_set() and time.monotonic() < end:
            with self.tally.lock:
                number = next(self._numbers)
            if number >= most:
                break
            self._count(number, backend)
            advance()
        backend.close()

    def _count(self, number: int, backend: SandboxBackend) -> None:
        try:
            self._episode(random.Random(f"{self._seed}/{number}"), backend)
        except WrongResultError as error:
            with self.tally.lock:
                self.tally.wrong.append(f"episode {number}: {error}")
        except InfrastructureError as error:
            cause = cause_of(error)
            with self.tally.lock:
                if cause:
                    self.tally.failures[cause] += 1
                else:
                    self.tally.unclassified.append(f"episode {number}: {error}")
        except Exception as error:  # noqa: BLE001 - any other is what this looks for
            with self.tally.lock:
                self.tally.unclassified.append(f"episode {number}: {type(error).__name__}: {error}")
        with self.tally.lock:
            self.tally.episodes += 1

    def _episode(self, draw: random.Random, backend: SandboxBackend) -> None:
        token, code = f"{draw.getrandbits(64):016x}", draw.randrange(1, 125)
        fatal = draw.randrange(5) if draw.random() < KILL_SHARE else None
        victim, pick = draw.choice(VICTIMS), draw.random()

        def step(number: int) -> None:
            if number == fatal:
                self._kill(victim, pick)

        step(0)
        backend.start()
        step(1)
        expect(
            backend.run_command("cat /token; ls /workspace"), "", 0, stderr="cat: /token: No such file or directory\n"
        )
        step(2)
        backend.write_file("/token", token)
        backend.run_command(f"setsid sleep {self._marker} & echo x > /workspace/x")
        step(3)
        expect(backend.run_command(f"cat /token; echo {token} >&2; exit {code}"), token, code, stderr=f"{token}\n")
        step(4)
        if backend.read_file("/token") != token:
            raise WrongResultError("a file reads otherwise than it was written")
        backend.close()

    def _kill(self, victim: str, pick: float) -> None:
        candidates = helpers()[victim]
        if candidates:
            try:
                os.kill(sorted(candidates)[int(pick * len(candidates))], signal.SIGKILL)
            except ProcessLookupError:
                return  # it had just ended
            with self.tally.lock:
                self.tally.kills[victim] += 1


def expect(result: ExecutionResult, stdout: str, code: int, *, stderr: str) -> None:
    """Compare a command's result. Raises :class:`WrongResultError`."""
    if (result.stdout, result.exit_code, result.stderr) != (stdout, code, stderr):
        raise WrongResultError(f"{result} instead of {stdout!r}, {stderr!r} and {code}")


def cause_of(error: InfrastructureError) -> str:
    """The cause that an error names, as a word or two; ``""`` when it names none that a kill explains."""
    if "sandbox holder" in error.what:
        return "holder ended"
    if "killed by signal 9" in error.what:
        return "sandbox killed"
    if error.what.startswith("apptainer exec failed"):
        return "container ended"
    return ""


def descendants() -> dict[int, int]:
    """Every process below this one, with its parent."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                parents[int(folder.name)] = int(fields[1])
    below: dict[int, int] = {}
    pending = [os.getpid()]
    while pending:
        parent = pending.pop()
        for process, its in parents.items():
            if its == parent:
                below[process] = parent
                pending.append(process)
    return below


def helpers() -> dict[str, set[int]]:
    """The processes of the drivers here, by what they are."""
    below = {process: parent for process, parent in descendants().items() if _name(process) == TITLE}
    found: dict[str, set[int]] = {victim: set() for victim in VICTIMS}
    for process in below:
        depth, parent = 0, below[process]
        while parent in below:
            depth, parent = depth + 1, below[parent]
        found[VICTIMS[min(depth, 2)]].add(process)
    return found


def _name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class Holdings:
    """What this process has of the machine: counts, and its own resident memory in bytes."""

    processes: int
    descriptors: int
    mounts: int
    files: int
    groups: int
    memory: int

    @classmethod
    def now(cls, folder: Path) -> "Holdings":
        """``folder``: where layers and temporary files are."""
        own = f"{PREFIX}{os.getpid()}-"
        return cls(
            processes=len(descendants()),
            descriptors=len(os.listdir("/proc/self/fd")),  # noqa: PTH208 - no descriptor of its own stays open
            mounts=len(Path("/proc/self/mounts").read_text().splitlines()),
            files=sum(len(names) + len(folders) for _, folders, names in os.walk(folder)),
            # not by glob, which fails where another process removes a group meanwhile
            groups=sum(name.startswith(own) for _, names, _ in os.walk("/sys/fs/cgroup") for name in names),
            memory=int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize(),
        )

    def over(self, before: "Holdings") -> dict[str, int]:
        """What there is more of than ``before``; of memory, what is more than :data:`MOST_GROWTH`."""
        more = {name: value - vars(before)[name] for name, value in vars(self).items()}
        more["memory"] -= MOST_GROWTH
        return {name: value for name, value in more.items() if value > 0}


def settled(measure: Callable[[], dict[str, int]]) -> dict[str, int]:
    """What ``measure`` finds when it has found nothing, or for :data:`PATIENCE` seconds something."""
    end = time.monotonic() + PATIENCE
    while (found := measure()) and time.monotonic() < end:
        time.sleep(0.1)
    return found


def with_marker(marker: str) -> dict[str, int]:
    """Host processes whose command line holds a text, as a count."""
    count = 0
    for folder in Path("/proc").iterdir():
        try:
            count += folder.name.isdigit() and f"sleep\0{marker}\0".encode() in (folder / "cmdline").read_bytes()
        except OSError:
            continue
    return {"services": count} if count else {}


@contextmanager
def progress(console: Console, total: int | None) -> Iterator[Callable[[], None]]:
    """A bar on a terminal, nothing elsewhere."""
    columns = TextColumn("episodes"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda: bar.advance(task)


def run(arguments: argparse.Namespace, folder: Path, console: Console) -> bool:
    """A whole soak in ``folder``; whether it was ok."""
    base, marker = folder / "base", f"36000.{os.getpid()}{arguments.seed:03d}"
    most = arguments.episodes if arguments.seconds is None else sys.maxsize
    interrupted = False
    first = Holdings.now(folder)
    choice = choose(arguments.driver)
    with choice.driver as driver:
        driver.unpack(build_root_archive(folder / "root.tar"), base)
        soak = Soak(driver, LayerStack(base), arguments.seed, marker)

        def episodes(most: int, seconds: float, advance: Callable[[], None]) -> bool:
            threads = [
                threading.Thread(target=soak.work, args=(most, time.monotonic() + seconds, advance))
                for _ in range(arguments.concurrency)
            ]
            for thread in threads:
                thread.start()
            try:
                for thread in threads:
                    thread.join()
            except KeyboardInterrupt:
                soak.stop.set()
                for thread in threads:
                    thread.join()
                return True
            return False

        begun = time.monotonic()
        warm_up = min(most // 10, 20 * arguments.concurrency)
        total = None if arguments.seconds is not None else most
        with progress(console, total) as advance:
            interrupted = episodes(warm_up, arguments.seconds or 1e9, advance)
            before = Holdings.now(folder)
            left_over = None if arguments.seconds is None else arguments.seconds - (time.monotonic() - begun)
            soak._numbers = iter(range(soak.tally.episodes, sys.maxsize))
            if not interrupted:
                interrupted = episodes(most, 1e9 if left_over is None else left_over, advance)
        seconds = time.monotonic() - begun
        grown = settled(lambda: Holdings.now(folder).over(before))
        driver.remove(base)
    (folder / "root.tar").unlink()
    left = settled(lambda: {**Holdings.now(folder).over(first), **with_marker(marker)})
    left = {name: value for name, value in left.items() if name != "memory"}
    leftovers = {**{f"{name} during the run": value for name, value in grown.items()}, **left}
    tally = soak.tally
    figures = {
        "episodes": tally.episodes,
        "wrong": len(tally.wrong),
        "leftovers": len(leftovers),
        "unclassified": len(tally.unclassified),
        "left": leftovers,
        "failures": dict(tally.failures),
        "kills": dict(tally.kills),
        "seconds": round(seconds, 1),
        "episodes_per_s": round(tally.episodes / max(seconds, 1e-9), 1),
        "examples": [*tally.wrong[:5], *tally.unclassified[:5]],
        "interrupted": interrupted,
        "memory_mib": [before.memory >> 20, Holdings.now(folder).memory >> 20],
    }
    ok = not (interrupted or tally.wrong or leftovers or tally.unclassified or not tally.episodes)
    pins = {"driver": driver.name, "seed": arguments.seed, "concurrency": arguments.concurrency}
    write_verdict(arguments.out / "soak.json", ok, figures, pins)
    for name in ("episodes", "wrong", "leftovers", "unclassified"):
        console.print(f"{name:>13}: {figures[name]}", highlight=False)
    console.print(f"kills {figures['kills']}", highlight=False)
    console.print(f"failures {figures['failures']}, {seconds:.0f} s", highlight=False)
    for line in [*figures["examples"], *(f"left: {name} {value}" for name, value in leftovers.items())]:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return ok


def main() -> int:
    """The command line; exit code 0 where nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, help="run this long instead of a number of episodes")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--driver", default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="leonardo-soak-") as name:
            Path(name).chmod(0o755)
            return 0 if run(arguments, Path(name), Console()) else 1
    except LeonardoError as error:
        print(f"soak: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    raise SystemExit(main())
