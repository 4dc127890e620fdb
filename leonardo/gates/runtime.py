"""The gate ``runtime``: does a sandbox of a prepared state do what episodes rely on? In small limits, soon had.

Tools that the harness calls, limits on disk, memory, processes, descriptors and output, time limits, services that live
on between commands, no network but loopback, and a verifier that can say yes and no.
"""

import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from leonardo.gates.reset import LISTENER, PORT
from leonardo.rollout.verification import Status, prepare, verify
from leonardo.sandbox.backend import ExecutionResult, SandboxBackend, SandboxOOMError
from leonardo.sandbox.driver import Driver, LayerStack, Limits
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files

LIMITS = Limits(disk=48 << 20, memory=96 << 20, processes=64, open_files=128, output=20_000)

TOOLS = ("bash", "cat", "env", "mkdir", "rm", "sleep")
"""What the harness's own commands call."""

_PATIENCE = 20.0
"""Seconds that a command may take that is to be ended after one."""


@dataclass
class RuntimeFinding:
    """What was wrong, by check; checks that could not be made in this image, with the reason."""

    faults: dict[str, str] = field(default_factory=dict)
    not_checked: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Nothing was wrong."""
        return not self.faults

    @property
    def sentence(self) -> str:
        """What was wrong, in a line."""
        return "; ".join(f"{name}: {fault}" for name, fault in self.faults.items())


class _CannotBeCheckedError(Exception):
    """The image lacks what a check needs."""


def check_runtime(
    driver: Driver, stack: LayerStack, task: Task, checks: Collection[str] | None = None
) -> RuntimeFinding:
    """Make the checks, all if not given by name, each in a fresh sandbox."""
    finding = RuntimeFinding()
    backend = driver.backend(stack, limits=LIMITS)
    try:
        for name, check in CHECKS.items():
            if checks is not None and name not in checks:
                continue
            backend.start()
            try:
                if fault := check(backend, task):
                    finding.faults[name] = fault
            except _CannotBeCheckedError as error:
                finding.not_checked[name] = str(error)
            except SandboxOOMError as error:
                finding.faults[name] = f"the sandbox was ended: {error}"
            except RuntimeError as error:
                finding.faults[name] = str(error)
    finally:
        backend.close()
    return finding


def _tools(backend: SandboxBackend, task: Task) -> str:
    missing = [name for name in TOOLS if backend.run_command(f"command -v {name}").exit_code]
    return f"the image has no {', '.join(missing)}" if missing else ""


def _output(backend: SandboxBackend, task: Task) -> str:
    result = backend.run_command("printf '%*s' 400000 ''; printf '%*s' 400000 '' >&2; exit 3")
    if result.exit_code != 3:
        return f"a flood of output ends with {result.exit_code}, not with the command's 3"
    longest = max(len(result.stdout), len(result.stderr))
    return f"{longest} characters of output came through" if longest > LIMITS.output + 200 else ""


def _disk(backend: SandboxBackend, task: Task) -> str:
    filled = backend.run_command(f"printf '%*s' {LIMITS.disk * 2} '' > /filler")
    if filled.exit_code == 0:
        return f"{LIMITS.disk * 2} bytes were written where {LIMITS.disk} are allowed"
    after = backend.run_command("rm -f /filler; echo room > /after && cat /after")
    return "" if after.stdout == "room\n" else f"nothing can be written after the disk was full: {_said(after)}"


def _memory(backend: SandboxBackend, task: Task) -> str:
    size = LIMITS.memory * 3
    try:
        result = backend.run_command(f"x=$(printf '%*s' {size} ''); sleep 1; echo held", timeout=30)
    except SandboxOOMError:
        backend.start()
        return "" if backend.run_command("echo again").stdout == "again\n" else "no sandbox after one was ended"
    return f"{size} bytes were held where {LIMITS.memory} are allowed" if "held" in result.stdout else ""


def _processes(backend: SandboxBackend, task: Task) -> str:
    many = LIMITS.processes * 3
    try:
        backend.run_command(f"for ((i = 0; i < {many}; i++)); do sleep 20 & done 2> /dev/null", timeout=1.5)
        seen = backend.run_command("set -- /proc/[0-9]*; echo $#", timeout=5)
    except SandboxOOMError:
        return ""
    if seen.exit_code or not seen.stdout.strip().isdigit():
        return ""  # not even one more can be had
    return f"{seen.stdout.strip()} processes where {LIMITS.processes} are allowed" if int(seen.stdout) >= many else ""


def _descriptors(backend: SandboxBackend, task: Task) -> str:
    result = backend.run_command("ulimit -Hn")
    allowed = result.stdout.strip()
    return "" if allowed.isdigit() and int(allowed) <= LIMITS.open_files else f"open files are bounded by {allowed!r}"


def _timeouts(backend: SandboxBackend, task: Task) -> str:
    begun = time.monotonic()
    result = backend.run_command("echo begun; sleep 1000", timeout=1)
    took = time.monotonic() - begun
    if result.exit_code != 124 or "begun" not in result.stdout:
        return (
            f"a command over its time ends with {result.exit_code} and {result.stdout[:40]!r}, not 124 and its output"
        )
    if took > _PATIENCE:
        return f"a command of one second was ended after {took:.0f}"
    return "" if backend.run_command("echo alive").stdout == "alive\n" else "the sandbox did not outlive a time limit"


def _services(backend: SandboxBackend, task: Task) -> str:
    started = backend.run_command("sleep 1000 > /dev/null 2>&1 & echo $!")
    # seen a little later: one that could not be run is a zombie by then, or gone
    state = f"read -rt 0.2 <> <(:); read -r pid name state rest < /proc/{started.stdout.strip()}/stat; echo $state"
    if backend.run_command(state).stdout.strip() not in ("S", "R", "D"):
        return "a process in the background did not outlive its command"
    if "listens" not in backend.run_command(LISTENER).stdout:
        raise _CannotBeCheckedError("nothing in the image can listen (python3, perl, nc)")
    reached = backend.run_command(f"exec 3<> /dev/tcp/127.0.0.1/{PORT}")
    return "" if reached.exit_code == 0 else f"a service is not reached by the next command: {_said(reached)}"


def _network(backend: SandboxBackend, task: Task) -> str:
    result = backend.run_command("while read -r name rest; do echo $name; done < /proc/net/dev")
    names = {match[1] for line in result.stdout.splitlines() if (match := re.match(r"([\w.@-]+):", line))}
    routes = backend.run_command(
        "n=0; while read -r line; do ((n += 1)); done < /proc/net/route; echo $n"
    ).stdout.strip()
    if "lo" not in names:
        return f"there is no loopback, only {', '.join(sorted(names)) or 'nothing'}"
    return "" if routes in ("0", "1") else f"there are routes to a network, by {', '.join(sorted(names - {'lo'}))}"


def _verifier(backend: SandboxBackend, task: Task) -> str:
    prepare(backend, task)
    for code, wanted in ((0, Status.PASSED), (1, Status.FAILED)):
        made = Task(task.id, task.instruction, task.definition, verifier_files(f"#!/bin/bash\nexit {code}\n"))
        verdict = verify(backend, made, timeout=60)
        if verdict.status is not wanted:
            return f"a verifier that ends with {code} is {verdict.status.value}: {verdict.output[-200:]}"
    return ""


CHECKS: dict[str, Callable[[SandboxBackend, Task], str]] = {
    "tools": _tools,
    "output": _output,
    "disk": _disk,
    "memory": _memory,
    "processes": _processes,
    "descriptors": _descriptors,
    "timeouts": _timeouts,
    "services": _services,
    "network": _network,
    "verifier": _verifier,
}
"""Each says what is wrong, or ``""``."""

OF_A_TASK = frozenset({"tools", "services", "verifier"})
"""What may differ between tasks on one base; the rest is the place's."""


def _said(result: ExecutionResult) -> str:
    return " ".join((result.stderr or result.stdout).split())[-200:] or f"exit code {result.exit_code}"
