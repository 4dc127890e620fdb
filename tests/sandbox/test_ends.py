"""However things end, nothing is left: the caller killed, the holder killed, the guard killed."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leonardo.errors import InfrastructureError
from leonardo.sandbox.driver import Driver, LayerStack
from leonardo.sandbox.drivers import CANDIDATES, ONE_ID
from leonardo.sandbox.namespaces import NamespacesDriver
from tests.sandbox.conftest import SMALL, another

CALLER = """
import sys, threading, time
from pathlib import Path
from leonardo.sandbox import drivers
from leonardo.sandbox.driver import LayerStack
base, marker, label = sys.argv[1:]
candidate = next(c for c in drivers.CANDIDATES if c.label == label)
driver = candidate.opened()
stack = LayerStack(Path(base))
backends = [driver.backend(stack) for _ in range(3)]
for backend in backends:
    backend.start()
    backend.run_command(f"setsid sleep {marker} & (setsid sleep {marker} &)")
def set_up():
    driver.set_up(stack, f"sleep {marker}", Path(base).parent / "killed.tar.gz", timeout=60)
threading.Thread(target=set_up, daemon=True).start()
threading.Thread(target=lambda: backends[0].run_command(f"sleep {marker}"), daemon=True).start()
time.sleep(0.5)
print("ready", flush=True)
time.sleep(600)
"""

Caller = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def caller(driver: NamespacesDriver, stack: LayerStack) -> Iterator[Caller]:
    """Starts another process that runs sandboxes and a set-up with a marker in their command lines."""
    label = ONE_ID.label if "one user id" in driver.degraded else driver.name
    assert label in {candidate.label for candidate in CANDIDATES}
    started: list[subprocess.Popen[str]] = []

    def start(marker: str) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", CALLER, str(stack.base), marker, label]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _started() -> Iterator[set[int]]:
    """The processes that the block starts, filled in at its end. Other drivers of this process make some meanwhile."""
    mine: set[int] = set()
    before = _children(os.getpid())
    yield mine
    for child in _children(os.getpid()) - before:
        mine |= {child} | _descendants(child)


def _children(process: int) -> set[int]:
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return {int(word) for task in tasks for word in task.read_text().split()}


def _descendants(process: int) -> set[int]:
    found, pending = set(), [process]
    while pending:
        try:
            children = Path(f"/proc/{pending[-1]}/task/{pending.pop()}/children").read_text().split()
        except OSError:
            continue
        pending += map(int, children)
        found |= set(map(int, children))
    return found


def _name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except OSError:
        return ""  # it has ended


def _end(processes: set[int], seconds: float = 5) -> bool:
    """Whether all of them end in time. One that nobody has waited for yet has ended."""
    end = time.monotonic() + seconds
    while any(map(_runs, processes)):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_kill_9_of_the_caller_leaves_nothing(caller: Caller, folder: Path, gone, processes_with, marker: str) -> None:
    mounts = Path("/proc/self/mounts").read_text()
    process = caller(marker)
    helpers = _descendants(process.pid)
    assert len(processes_with(marker)) >= 7  # six services, a command, a set-up, and who called
    process.kill()
    process.wait()
    assert gone(marker, seconds=5)
    assert _end(helpers)
    assert Path("/proc/self/mounts").read_text() == mounts
    assert not list(folder.glob("*killed*"))


def test_a_caller_that_ends_in_order_leaves_nothing(caller: Caller, gone, marker: str) -> None:
    process = caller(marker)
    helpers = _descendants(process.pid)
    process.send_signal(signal.SIGINT)
    process.wait()
    assert gone(marker, seconds=5)
    assert _end(helpers)


@pytest.mark.parametrize("victim", ["guard", "holder"])
def test_kill_9_of_a_helper_is_named_and_mended(
    driver: Driver, stack: LayerStack, gone, marker: str, victim: str
) -> None:
    own = another(driver)
    with own:
        backend = own.backend(stack, limits=SMALL)
        with _started() as new:
            backend.start()
        backend.run_command(f"setsid sleep {marker} &")
        # the helpers are called "sandbox": the guard is the eldest, the holder its child
        helpers = sorted(process for process in new if _name(process) == "sandbox")
        os.kill(helpers[0 if victim == "guard" else 1], signal.SIGKILL)
        with pytest.raises(InfrastructureError, match="killed by signal 9"):
            backend.run_command("sleep 5")
        assert gone(marker, seconds=5)
        with pytest.raises(InfrastructureError, match="killed by signal 9"):
            backend.run_command("true")
        backend.start()
        assert backend.run_command("echo again").stdout == "again\n"
        backend.close()


def test_a_sandbox_killed_from_outside_is_an_infrastructure_failure(
    driver: Driver, stack: LayerStack, processes_with, marker: str
) -> None:
    backend, other = driver.backend(stack, limits=SMALL), driver.backend(stack, limits=SMALL)
    backend.start()
    other.start()
    backend.run_command(f"setsid sleep {marker} &")
    service = processes_with(marker)[0]
    parent = int(Path(f"/proc/{service}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    with pytest.raises(InfrastructureError, match="killed by signal 9"):
        backend.run_command("sleep 5")
    assert other.run_command("echo unharmed").stdout == "unharmed\n"
    backend.close()
    other.close()


def test_closing_the_driver_ends_its_sandboxes(driver: Driver, stack: LayerStack, gone, marker: str) -> None:
    with _started() as processes:
        own = another(driver)
        backend = own.backend(stack, limits=SMALL)
        backend.start()
    backend.run_command(f"setsid sleep {marker} &")
    own.close()
    own.close()
    assert gone(marker, seconds=5)
    assert len(processes) >= 3
    assert _end(processes)
    with pytest.raises(InfrastructureError):
        backend.run_command("true")
    backend.close()
    with pytest.raises(InfrastructureError, match="closed"):
        backend.start()


def test_a_forked_child_does_not_hold_the_end_up(driver: Driver, stack: LayerStack, gone, marker: str) -> None:
    own = another(driver)
    backend = own.backend(stack, limits=SMALL)
    backend.start()
    backend.run_command(f"setsid sleep {marker} &")
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    try:
        begun = time.monotonic()
        own.close()
        assert time.monotonic() - begun < 3
        assert gone(marker)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_many_episodes_leak_nothing(driver: Driver, stack: LayerStack) -> None:
    def held() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), len(_descendants(os.getpid()))

    backend = driver.backend(stack, limits=SMALL)

    def episodes(count: int) -> None:
        for number in range(count):
            backend.start()
            assert backend.run_command(f"echo {number}").stdout == f"{number}\n"
        backend.close()

    episodes(2)
    time.sleep(0.5)
    before = held()
    episodes(8 if driver.name == "apptainer" else 60)
    end = time.monotonic() + 5
    while held() != before and time.monotonic() < end:  # the spare for the next one comes in a quiet moment
        time.sleep(0.05)
    assert held() == before


def test_no_user_namespaces_and_no_apptainer_is_one_clear_line() -> None:
    if not shutil.which("unshare"):
        pytest.skip("the host has no unshare")
    # in a user namespace of its own, whose limit of further ones is then set to none
    opening = "from leonardo.sandbox.drivers import open_driver; open_driver()"
    inside = f"echo 0 > /proc/sys/user/max_user_namespaces && exec {sys.executable} -c '{opening}'"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        ["unshare", "-U", "-r", "sh", "-c", inside], capture_output=True, text=True, check=False, env=environment
    )
    if "unshare" in done.stderr and "failed" in done.stderr:
        pytest.skip(f"no user namespaces at all: {done.stderr.strip()}")
    assert done.returncode != 0
    message = done.stderr.strip().splitlines()[-1]
    assert "no sandboxes can be run here" in message
    assert "max_user_namespaces" in message
    assert "make apptainer" in message
