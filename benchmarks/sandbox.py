"""How long sandboxes take on this machine: ``python -m benchmarks.sandbox`` from the repository's root.

The steps are those of upstream's environment: a reset is a start and four preparation steps; an episode is a reset, ten
commands, the upload and run of a verifier, the reading of its reward, and the end. The floor is what the host itself
needs to start the same shell. Prints a table and writes out/bench-sandbox.json.
"""

import argparse
import io
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from concurrent import futures
from pathlib import Path

from rich.console import Console
from rich.table import Table

from leonardo.files import write_verdict
from leonardo.sandbox.backend import SandboxBackend
from leonardo.sandbox.driver import LayerStack
from leonardo.sandbox.drivers import choose
from leonardo.sandbox.namespaces import NamespacesDriver
from tests.rootfs import build_root_archive

TARGETS = {"reset_ms_p50": 12.0, "command_over_fork": 1.3, "destroy_ms_p50": 3.0}
"""At most, for the driver ``namespaces``."""
TARGET_EPISODES_PER_SECOND = 40.0
COMMANDS = 10
THREADS = 8


def milliseconds(action: Callable[[], object]) -> float:
    """How long one call takes."""
    begun = time.perf_counter()
    action()
    return (time.perf_counter() - begun) * 1000


def spawn(*command: str) -> None:
    """Start a program on the host with its output in a pipe, and wait for it."""
    read, write = os.pipe()
    process = os.posix_spawn(command[0], command, {}, file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)])
    os.close(write)
    os.read(read, 1)
    os.close(read)
    os.waitpid(process, 0)


def prepare(backend: SandboxBackend) -> None:
    """Upstream's steps after a start."""
    backend.run_command("mkdir -p /workspace /output /logs/verifier")
    backend.run_command("mkdir -p /tmp/state && chmod 700 /tmp/state")
    backend.write_file("/tmp/wrapper.sh", 'cd "$(cat /tmp/state/cwd 2>/dev/null || pwd)"; eval "$1"\n')
    backend.run_command("chmod +x /tmp/wrapper.sh")


def verify(backend: SandboxBackend) -> None:
    """Upload a verifier, run it, read the reward."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        content = b"#!/bin/bash\nmkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt\n"
        member = tarfile.TarInfo("tests/test.sh")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    backend.put_archive("/", stream.getvalue())
    backend.run_command("bash /tests/test.sh")
    if backend.read_file("/logs/verifier/reward.txt") != "1\n":
        raise RuntimeError("the benchmark's own verifier failed")


def episode(backend: SandboxBackend) -> None:
    """A whole episode."""
    backend.start()
    prepare(backend)
    for number in range(COMMANDS):
        backend.run_command(f"echo {number} >> /workspace/log; cat /workspace/log")
    verify(backend)
    backend.close()


def measure(driver: NamespacesDriver, stack: LayerStack, rounds: int) -> dict[str, float]:
    """All figures of one driver."""
    backend = driver.backend(stack)
    samples: dict[str, list[float]] = {kind: [] for kind in ("start", "reset", "command", "destroy", "floor", "true")}
    shell = next(path for path in ("/bin/bash", "/usr/bin/bash") if Path(path).exists())
    for _ in range(rounds):
        begun = time.perf_counter()
        samples["start"].append(milliseconds(backend.start))
        prepare(backend)
        samples["reset"].append((time.perf_counter() - begun) * 1000)
        # side by side, so that both see the same load of the machine
        for _ in range(5):
            samples["command"].append(milliseconds(lambda: backend.run_command("true")))
            samples["floor"].append(milliseconds(lambda: spawn(shell, "-c", "true")))
            samples["true"].append(milliseconds(lambda: spawn("/bin/true")))
        samples["destroy"].append(milliseconds(backend.close))
    episodes = [milliseconds(lambda: episode(backend)) for _ in range(max(3, rounds // 3))]
    begun = time.perf_counter()
    count = max(THREADS, 4 * rounds)
    with futures.ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda _: episode(driver.backend(stack)), range(count)))
    rate = count / (time.perf_counter() - begun)
    figures = {f"{kind}_ms_p50": statistics.median(values) for kind, values in samples.items()}
    figures |= {f"{kind}_ms_p95": statistics.quantiles(values, n=20)[-1] for kind, values in samples.items()}
    return {
        **figures,
        "command_over_fork": figures["command_ms_p50"] / figures["floor_ms_p50"],
        "episode_ms_p50": statistics.median(episodes),
        f"episodes_per_s_{THREADS}": rate,
    }


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", default="auto")
    parser.add_argument("--base", type=Path, help="archive of a root file system (default: a tiny one of this host)")
    parser.add_argument("--rounds", type=int, default=0, help="default: 60, or 8 with the driver apptainer")
    parser.add_argument("--out", type=Path, default=Path("out/bench-sandbox.json"))
    arguments = parser.parse_args()
    with choose(arguments.driver).driver as driver, tempfile.TemporaryDirectory() as folder:
        archive = arguments.base or build_root_archive(Path(folder) / "root.tar")
        base = Path(folder) / "base"
        driver.unpack(archive, base)
        try:
            rounds = arguments.rounds or (60 if driver.name == "namespaces" else 8)
            figures = measure(driver, LayerStack(base), rounds)
        finally:
            driver.remove(base)
        pins = {"driver": driver.name, "degraded": driver.degraded, "rounds": rounds}
    met = {name: figures[name] <= most for name, most in TARGETS.items()}
    met[f"episodes_per_s_{THREADS}"] = figures[f"episodes_per_s_{THREADS}"] >= TARGET_EPISODES_PER_SECOND
    ok = all(met.values()) or driver.name != "namespaces"
    table = Table(title=f"driver {driver.name}" + (f" ({driver.degraded})" if driver.degraded else ""))
    for heading in ("figure", "value", "target"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")
    limits = {name: f"<= {most:g}" for name, most in TARGETS.items()}
    limits[f"episodes_per_s_{THREADS}"] = f">= {TARGET_EPISODES_PER_SECOND:g}"
    for name, value in figures.items():
        met_mark = "" if name not in met or driver.name != "namespaces" else (" met" if met[name] else " MISSED")
        table.add_row(name, f"{value:.2f}", limits.get(name, "") + met_mark)
    Console().print(table)
    write_verdict(arguments.out, ok, figures, pins)
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
