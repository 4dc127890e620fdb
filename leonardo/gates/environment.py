"""Environment gates: can each task's world be built, reset and judged here?

For every task, in sandboxes of its prepared state:

* **null run**: the verifier fails on the initial state. A verifier that cannot run (``broken``) has said nothing; it
  counts only where it passes after the reference solution, for it then merely imports what a solution makes.
* **reference**: after the reference solution the verifier passes, in the same sandbox, with its services alive.
* **reset**: after an episode that did its worst, a reset shows the same state (:mod:`leonardo.gates.reset`).
* **runtime**: tools, limits, time limits, services and verifier work (:mod:`leonardo.gates.runtime`).
* **cleanup**: when the driver is closed, no process, mount, file, port or cgroup of it is left.

A task that cannot be judged here gets the class and reason of its failure, never a silent pass.
"""

import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from leonardo.assets.failures import classify_run
from leonardo.assets.manifest import ManifestEntry, manifest_digest
from leonardo.assets.progress import BuildProgress
from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.gates.each import run_each
from leonardo.gates.reset import check_reset
from leonardo.gates.runtime import CHECKS, OF_A_TASK, check_runtime
from leonardo.rollout.verification import Status, Verdict, prepare, run_script, verify
from leonardo.sandbox.backend import SandboxBackend, SandboxOOMError
from leonardo.sandbox.driver import Driver, LayerStack
from leonardo.tasks.task import Task

SOLUTION_TIMEOUT = 600.0


@dataclass
class TaskReport:
    """What the gates found for one task; ``None`` where they did not get that far.

    ``hostile`` is what the episode before the reset came to, ``runtime_faults`` what did not work, ``not_checked`` what
    could not be asked of this image, and why.
    """

    task_id: str
    kind: str = ""
    built: bool = False
    null_fails: bool | None = None
    reference_passes: bool | None = None
    reset_identical: bool | None = None
    runtime_works: bool | None = None
    hostile: tuple[str, ...] = ()
    runtime_faults: dict[str, str] = field(default_factory=dict)
    not_checked: dict[str, str] = field(default_factory=dict)
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
            "runtime_works": sum(task.runtime_works is True for task in self.tasks),
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
    runtime: bool = True,
    progress: BuildProgress | None = None,
) -> GateReport:
    """Build the tasks and run every gate but the one on leftovers, which needs the driver closed (its caller's part).

    Args:
        jobs: builds and checks at a time.
        runtime: whether the gate of that name is among them.
        progress: told what is done, in the caller's thread.
    """
    progress = progress or BuildProgress()
    entries = store.build(tasks, jobs=jobs, progress=progress)
    progress.start(len(tasks), "checked")
    reports = {task.id: _report_of(task, entry) for task, entry in zip(tasks, entries, strict=True)}
    first = {entry.base: entry.task_id for entry in reversed(entries)}  # the place is looked at once a base
    asked = {
        entry.task_id: () if not runtime else CHECKS if first[entry.base] == entry.task_id else OF_A_TASK
        for entry in entries
    }
    checks = [partial(check_task, task, reports[task.id], store, driver, runtime=asked[task.id]) for task in tasks]
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


def check_task(
    task: Task,
    report: TaskReport,
    store: AssetStore,
    driver: Driver,
    *,
    runtime: Collection[str] = tuple(CHECKS),
) -> TaskReport:
    """Run the gates of one built task into ``report``. ``runtime`` names the checks of the gate of that name."""
    if not report.built:
        return report
    began = time.monotonic()
    try:
        stack = store.prepared(task).stack
        _check(task, report, stack, driver)
        if runtime:
            _check_runtime(task, report, stack, driver, runtime)
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
        prepare(backend, task)
        null = verify(backend, task)
        reference = _reference(backend, task, report)
        _judge(report, null, reference)
    finally:
        backend.close()
    reset = check_reset(driver, stack)
    report.reset_identical, report.hostile = reset.identical, reset.did
    if not reset.identical:
        report.fail(FailureClass.RUNTIME, f"a reset differs: {reset.difference}")


def _check_runtime(task: Task, report: TaskReport, stack: LayerStack, driver: Driver, checks: Collection[str]) -> None:
    found = check_runtime(driver, stack, task, checks)
    report.runtime_works, report.runtime_faults, report.not_checked = found.ok, found.faults, found.not_checked
    if not found.ok:
        report.fail(FailureClass.RUNTIME, found.sentence)


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


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"
