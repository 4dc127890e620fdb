"""Environment gates: can each task's world be built, reset and judged here?

For every task, in sandboxes of its prepared state:

* **null run**: the verifier fails on the initial state. A verifier that cannot run (``broken``) has said nothing; it
  counts only where it passes after the reference solution, for it then merely imports what a solution makes.
* **reference**: after the reference solution the verifier passes, in the same sandbox, with its services alive.
* **reset**: after an episode that destroyed what it could, a reset shows the same file tree, entry by entry: kind,
  mode, owner, size, time, content, link target, extended attributes.
* **leftovers**: when the driver is closed, no process, mount or file of it is left.

A task that cannot be judged here gets the class and reason of its failure, never a silent pass.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from difflib import unified_diff
from functools import partial
from typing import Any

from leonardo.assets.failures import classify_run
from leonardo.assets.manifest import ManifestEntry, manifest_digest
from leonardo.assets.progress import BuildProgress
from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.gates.each import run_each
from leonardo.rollout.verification import Status, Verdict, prepare, run_script, verify
from leonardo.sandbox.backend import SandboxBackend, SandboxOOMError
from leonardo.sandbox.driver import Driver, LayerStack
from leonardo.tasks.task import Task

SOLUTION_TIMEOUT = 600.0

# What an episode may do to its world at worst, with tools that images have; the rest is done by file transfer.
_DESTRUCTION = """
sleep 1000 & disown
chmod -R 000 /home /opt /srv; chown -R 12345:12345 /home
mkdir -p /opt/new /etc/new; echo x > /opt/new/x; ln -sf /etc/passwd /opt/new/link
rm -rf /var/lib /usr/share /usr/lib/python3* /home/* /root /tmp
touch -d @1 / /etc /usr; mv /etc /etc.moved
rm -rf /usr/bin /bin /usr/lib
"""


@dataclass
class TaskReport:
    """What the gates found for one task; ``None`` where they did not get that far."""

    task_id: str
    kind: str = ""
    built: bool = False
    null_fails: bool | None = None
    reference_passes: bool | None = None
    reset_identical: bool | None = None
    failure: FailureClass | None = None
    reason: str = ""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether every gate passed. A task without a reference solution has one gate less."""
        return self.failure is None

    def fail(self, failure: FailureClass, reason: str) -> None:
        """Record why; the first reason stays."""
        if self.failure is None:
            self.failure, self.reason = failure, reason


@dataclass
class GateReport:
    """What the gates found for a selection of tasks."""

    tasks: list[TaskReport]
    entries: list[ManifestEntry]
    leftovers: list[str] = field(default_factory=list)
    pins: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether every gate of every task passed and nothing was left over."""
        return all(task.ok for task in self.tasks) and not self.leftovers

    @property
    def figures(self) -> dict[str, Any]:
        """Counts over the tasks, and what was found for each."""
        return {
            "rows": len(self.tasks),
            "built": sum(task.built for task in self.tasks),
            "null_fails": sum(task.null_fails is True for task in self.tasks),
            "reference_passes": sum(task.reference_passes is True for task in self.tasks),
            "reset_identical": sum(task.reset_identical is True for task in self.tasks),
            "leftovers": len(self.leftovers),
            "leftover_list": self.leftovers[:20],
            "substitutions": sorted({_substitution(entry) for entry in self.entries if entry.substitution}),
            "tasks": [asdict(task) for task in self.tasks],
        }


def run_gates(
    tasks: Sequence[Task],
    store: AssetStore,
    driver: Driver,
    *,
    jobs: int = 2,
    progress: BuildProgress | None = None,
) -> GateReport:
    """Build the tasks and run every gate but the one on leftovers, which needs the driver closed (its caller's part).

    Args:
        jobs: builds and checks at a time.
        progress: told what is done, in the caller's thread.
    """
    progress = progress or BuildProgress()
    entries = store.build(tasks, jobs=jobs, progress=progress)
    progress.start(len(tasks), "checked")
    reports = {task.id: _report_of(task, entry) for task, entry in zip(tasks, entries, strict=True)}
    checks = [partial(check_task, task, reports[task.id], store, driver) for task in tasks]
    run_each(checks, lambda _: progress.advance(), jobs=jobs, stop=driver.close)
    pins = {
        "manifest": manifest_digest(entries),
        "driver": driver.name,
        "degraded": driver.degraded,
        "bases": {entry.image: entry.base for entry in entries if entry.base},
    }
    return GateReport([reports[task.id] for task in tasks], entries, pins=pins)


def _substitution(entry: ManifestEntry) -> str:
    return f"{entry.image}: {entry.substitution}" + (f" ({entry.registry_failure})" if entry.registry_failure else "")


def _report_of(task: Task, entry: ManifestEntry) -> TaskReport:
    report = TaskReport(task.id, task.kind, built=entry.failure is None)
    if entry.failure is not None:
        report.fail(entry.failure, entry.set_up.reason)
    return report


def check_task(task: Task, report: TaskReport, store: AssetStore, driver: Driver) -> TaskReport:
    """Run the gates of one built task into ``report``."""
    if not report.built:
        return report
    began = time.monotonic()
    try:
        _check(task, report, store.prepared(task).stack, driver)
    except (InfrastructureError, InputError) as error:
        report.fail(getattr(error, "failure", FailureClass.RUNTIME), str(error))
    except SandboxOOMError as error:
        report.fail(FailureClass.SPACE, str(error))
    except RuntimeError as error:  # what a sandbox could not do: a file that cannot be written
        report.fail(FailureClass.RUNTIME, str(error))
    report.seconds = round(time.monotonic() - began, 2)
    return report


def _check(task: Task, report: TaskReport, stack: LayerStack, driver: Driver) -> None:
    backend = driver.backend(stack)
    try:
        backend.start()
        first = _tree(backend)
        prepare(backend, task)
        null = verify(backend, task)
        reference = _reference(backend, task, report)
        _judge(report, null, reference)
        destroy(backend)
        backend.start()
        second = _tree(backend)
        report.reset_identical = first == second
        if not report.reset_identical:
            report.fail(FailureClass.RUNTIME, f"a reset differs: {_first_difference(first, second)}")
    finally:
        backend.close()


def _reference(backend: SandboxBackend, task: Task, report: TaskReport) -> Verdict | None:
    """The verdict after the reference solution, in a fresh sandbox; ``None`` where the task has none."""
    if task.reference_solution is None:
        return None
    backend.start()
    prepare(backend, task)
    exit_code, output = run_script(backend, task.reference_solution, SOLUTION_TIMEOUT)
    verdict = verify(backend, task)
    if verdict.status is not Status.PASSED and exit_code != 0:
        return Verdict(verdict.status, f"the solution ended with exit code {exit_code}: {output}")
    return verdict


def _judge(report: TaskReport, null: Verdict, reference: Verdict | None) -> None:
    report.reference_passes = None if reference is None else reference.status is Status.PASSED
    report.null_fails = null.status is Status.FAILED or (null.status is Status.BROKEN and bool(report.reference_passes))
    if null.status is Status.PASSED:
        report.fail(FailureClass.VERIFIER_ALREADY_PASSES, "the verifier passes on the initial state")
    elif not report.null_fails:
        report.fail(_broken(null.output), f"the verifier cannot run: {_last_line(null.output)}")
    if reference is not None and reference.status is not Status.PASSED:
        broken = reference.status is Status.BROKEN
        report.fail(
            _broken(reference.output) if broken else classify_run(reference.output) or FailureClass.REFERENCE_FAILS,
            f"after the reference solution the verifier {'cannot run' if broken else 'fails'}: "
            f"{_last_line(reference.output)}",
        )


def _broken(output: str) -> FailureClass:
    """Why a verifier does not run: it wants a network, or it is at fault itself."""
    wants_network = classify_run(output) is FailureClass.NETWORK
    return FailureClass.NETWORK if wants_network else FailureClass.VERIFIER_BROKEN


def destroy(backend: SandboxBackend) -> None:
    """An episode that does its worst in a running sandbox; where the solution has left no room for that, less."""
    with suppress(RuntimeError):
        backend.write_file("/etc/passwd", "gone\n")
        backend.write_file("/made/by/the/episode", b"\0" * 65536)
    backend.run_command(_DESTRUCTION, timeout=120)


def _tree(backend: SandboxBackend) -> str:
    listing = getattr(backend, "listing", None)
    if listing is None:
        raise InfrastructureError("this driver's sandboxes cannot list their file tree", "Use another driver")
    return listing()


def _first_difference(first: str, second: str) -> str:
    lines = unified_diff(first.splitlines(), second.splitlines(), lineterm="", n=0)
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    return f"{len(changed)} lines, such as {' / '.join(changed[:2])}"[:400]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"
