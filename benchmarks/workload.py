"""What every contestant is timed at: the steps of an episode, as upstream's environment does them."""

import io
import statistics
import tarfile
import time
from collections.abc import Callable, Sequence
from concurrent import futures

from leonardo.sandbox.backend import SandboxBackend

COMMANDS = 10
FOLDERS = ("/workspace", "/output", "/logs/verifier", "/tmp/state")
WRAPPER = "/tmp/wrapper.sh"
WRAPPER_TEXT = '#!/bin/bash\ncd "$(cat /tmp/state/cwd 2>/dev/null || pwd)"; eval "$1"\n'


def milliseconds(action: Callable[[], object]) -> float:
    """How long one call takes."""
    begun = time.perf_counter()
    action()
    return (time.perf_counter() - begun) * 1000


def prepare_by_steps(backend: SandboxBackend) -> None:
    """Upstream's preparation, a step at a time: three commands and a file."""
    backend.run_command("mkdir -p /workspace /output /logs/verifier")
    backend.run_command("mkdir -p /tmp/state && chmod 700 /tmp/state")
    backend.write_file(WRAPPER, WRAPPER_TEXT)
    backend.run_command(f"chmod +x {WRAPPER}")


def prepare_at_once(backend: SandboxBackend) -> None:
    """The same as one request, as the project's own environment does it."""
    backend.prepare(FOLDERS, {WRAPPER: WRAPPER_TEXT})


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


class Episodes:
    """Whole episodes on sandboxes of one kind, with the times of their parts in milliseconds.

    Args:
        make: gives a sandbox, not started.
        prepare: the preparation after a start.
    """

    def __init__(self, make: Callable[[], SandboxBackend], prepare: Callable[[SandboxBackend], None]) -> None:
        self._make = make
        self._prepare = prepare
        self.times: dict[str, list[float]] = {
            kind: [] for kind in ("start", "reset", "step", "verify", "destroy", "episode")
        }

    def run(self) -> None:
        """One episode: reset, ten commands, verification, end."""
        backend = self._make()
        begun = time.perf_counter()
        try:
            start = milliseconds(backend.start)
            reset = start + milliseconds(lambda: self._prepare(backend))
            steps = []
            for number in range(COMMANDS):
                command = f"echo {number} >> /workspace/log; cat /workspace/log"
                steps.append(milliseconds(lambda command=command: backend.run_command(command)))
            verification = milliseconds(lambda: verify(backend))
        except BaseException:
            backend.close()
            raise
        destroy = milliseconds(backend.close)
        parts = {"start": start, "reset": reset, "verify": verification, "destroy": destroy}
        for kind, value in {**parts, "episode": (time.perf_counter() - begun) * 1000}.items():
            self.times[kind].append(value)
        self.times["step"] += steps

    def rate(self, threads: int, count: int) -> float:
        """Episodes a second with several at a time. Their parts' times are not kept."""
        others = Episodes(self._make, self._prepare)
        begun = time.perf_counter()
        with futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda _: others.run(), range(count)))
        return count / (time.perf_counter() - begun)


def p50(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def p95(values: Sequence[float]) -> float:
    """The 95th percentile, or the largest of few."""
    return statistics.quantiles(values, n=20)[-1] if len(values) >= 20 else max(values)
