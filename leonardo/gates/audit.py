"""The content audit: is there anything in a prepared state that should not be?

Looked at is what an agent gets: a fresh sandbox with its seeds, before the verifier comes.

* **leaks**: a copy of the verifier or the reference solution, or an answer key (:mod:`leonardo.gates.leaks`);
* **outputs**: a file that the instruction says the agent is to make, and that is there already;
* **secrets**: the builder's paths, name and secrets, in any file of the task's layers;
* **layers**: the base and the deltas, as they lie on this node, digest before and after an episode that does its worst.

Listed, since tasks may want them: literals that the verifier expects in files that are data, setuid and setgid programs
that came with no package, and what everybody may write in a system's folders.
"""

import re
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from leonardo.assets.manifest import ManifestEntry, manifest_digest
from leonardo.assets.progress import BuildProgress
from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.gates.each import run_each
from leonardo.gates.instructions import outputs
from leonardo.gates.layers import layer_digest, search_layer
from leonardo.gates.leaks import MOST_BYTES, LeakSearch
from leonardo.gates.observation import listing_of, reader
from leonardo.gates.ownership import of_packages
from leonardo.gates.reset import destroy
from leonardo.gates.traces import of_this_machine, tokens_in
from leonardo.gates.trees import Tree, read_tree
from leonardo.gates.verdicts import TaskVerdict, judge
from leonardo.rollout.verification import Status, Verdict, prepare, run_script, verify
from leonardo.sandbox.backend import SandboxBackend
from leonardo.sandbox.driver import Driver, LayerStack
from leonardo.tasks.task import Task

SOLUTION_TIMEOUT = 600.0

_SYSTEM = re.compile(r"/(?:usr|etc|bin|sbin|lib|lib32|lib64|boot|var)(?:/|$)")
_VERIFIER_PLACES = re.compile(r"/(?:tests|logs/verifier|solution|oracle)/")
_STICKY, _SET_ID, _EVERYBODY = 0o1000, 0o6000, 0o002


@dataclass
class AuditReport:
    """What the audit found for one task. All lists are complete."""

    task_id: str
    kind: str = ""
    leaks: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    layers: list[str] = field(default_factory=list)
    literals: list[str] = field(default_factory=list)
    set_id: list[str] = field(default_factory=list)
    world_writable: list[str] = field(default_factory=list)
    not_searched: list[str] = field(default_factory=list)
    searched: int = 0
    seconds: float = 0.0
    verdict: TaskVerdict | None = None
    failure: FailureClass | None = None
    reason: str = ""

    @property
    def findings(self) -> list[str]:
        """What makes an audit fail."""
        return [*self.leaks, *self.outputs, *self.secrets, *self.layers]

    @property
    def clean(self) -> bool:
        """Whether everything was looked at and nothing found that may not be there."""
        return self.failure is None and not self.findings


def run_audit(
    tasks: Sequence[Task], store: AssetStore, driver: Driver, *, jobs: int = 2, progress: BuildProgress | None = None
) -> tuple[list[AuditReport], dict[str, Any]]:
    """Build the prepared states of ``tasks`` where they are not there, and audit them. Returns reports and pins."""
    progress = progress or BuildProgress()
    entries = store.build(tasks, jobs=jobs, progress=progress)
    progress.start(len(tasks), "audited")
    audit = Audit(store, driver)
    reports: dict[str, AuditReport] = {}

    def take(report: AuditReport) -> None:
        reports[report.task_id] = report
        progress.advance()
        if not report.clean:
            progress.note(f"{report.task_id}: {report.reason or report.findings[0]}")

    checks = [partial(audit.check, task, entry) for task, entry in zip(tasks, entries, strict=True)]
    run_each(checks, take, jobs=jobs, stop=driver.close)
    audit.check_layers(list(reports.values()))
    pins = {
        "manifest": manifest_digest(entries),
        "driver": driver.name,
        "bases": {entry.image: entry.base for entry in entries if entry.base},
    }
    return [reports[task.id] for task in tasks], pins


@dataclass(frozen=True)
class _Layer:
    """A layer as it lies on this node: its digest, what it holds of the builder, and the tasks that stand on it."""

    digest: str
    secrets: tuple[str, ...]
    users: set[str]


class Audit:
    """Audits tasks one by one; safe to use from several threads."""

    def __init__(self, store: AssetStore, driver: Driver) -> None:
        self._store = store
        self._driver = driver
        self._secrets = of_this_machine([store.root])
        self._bases: dict[Path, Tree] = {}
        self._layers: dict[Path, _Layer] = {}
        self._lock = threading.Lock()

    def check(self, task: Task, entry: ManifestEntry) -> AuditReport:
        """Audit one task and judge it."""
        report = AuditReport(task.id, task.kind)
        if entry.failure is not None:
            report.failure, report.reason = entry.failure, entry.set_up.reason
            return report
        began = time.monotonic()
        try:
            with self._store.using(task) as state:
                self._check(task, entry, state.stack, report)
        except (InfrastructureError, InputError) as error:
            report.failure, report.reason = getattr(error, "failure", FailureClass.RUNTIME), str(error)
        except RuntimeError as error:  # what a sandbox could not do
            report.failure, report.reason = FailureClass.RUNTIME, str(error)
        report.seconds = round(time.monotonic() - began, 1)
        return report

    def check_layers(self, reports: Sequence[AuditReport]) -> None:
        """Digest every layer once more, after all episodes; a changed one is a finding of all that stand on it."""
        known = {report.task_id: report for report in reports}
        for folder, layer in self._layers.items():
            if layer_digest(folder) != layer.digest:
                for task_id in layer.users & known.keys():
                    known[task_id].layers.append(f"layer {folder.name} is not what it was before the episodes")

    def _check(self, task: Task, entry: ManifestEntry, stack: LayerStack, report: AuditReport) -> None:
        base = self._base_tree(stack)
        for folder in (*stack.deltas, stack.base):
            report.secrets += self._note_layer(folder, task.id)
        with closing(self._driver.backend(stack)) as backend:
            backend.start()
            prepare(backend, task)
            tree = read_tree(listing_of(backend))
            made = {path: value for path, value in tree.items() if base.get(path) != value}
            owned = of_packages(backend, tree)
            self._look_at_files(task, backend, {path: made[path] for path in made.keys() - owned}, report)
            _look_at_modes(made, base, owned, report)
            null = verify(backend, task)
            reference, changed = _reference(task, backend, tree)
            report.outputs = sorted(
                f"{path}: there before the agent makes it"
                for path in outputs(task.instruction)
                if path in made and made[path].kind == "file" and (changed is None or path in changed)
            )
            destroy(backend)
        report.verdict = judge(task, entry.prepared, null, reference, tree, report.leaks)

    def _base_tree(self, stack: LayerStack) -> Tree:
        with self._lock:
            if stack.base not in self._bases:
                with closing(self._driver.backend(LayerStack(stack.base))) as backend:
                    backend.start()
                    self._bases[stack.base] = read_tree(listing_of(backend))
            return self._bases[stack.base]

    def _note_layer(self, folder: Path, task_id: str) -> tuple[str, ...]:
        """Digest a layer before the first episode on it, and tell what it holds of the builder."""
        with self._lock:
            if folder not in self._layers:
                found = tuple(search_layer(folder, self._secrets))
                self._layers[folder] = _Layer(layer_digest(folder), found, set())
            self._layers[folder].users.add(task_id)
            return self._layers[folder].secrets

    def _look_at_files(self, task: Task, backend: SandboxBackend, made: Tree, report: AuditReport) -> None:
        """Read everything that the set-up or the seeds put there, and no package did."""
        search, read = LeakSearch(task), reader(backend)
        own_words = task.definition + task.instruction
        for path, entry in sorted(made.items()):
            if _VERIFIER_PLACES.match(path):
                report.leaks.append(f"{path}: where a verifier or solution is put")
            if entry.kind != "file":
                continue
            if entry.size > MOST_BYTES:
                report.not_searched.append(f"{path}: {entry.size} bytes")
                continue
            content = read(path)
            report.searched += 1
            leaks, literals = search.search(path, content)
            report.leaks += map(str, leaks)
            report.literals += map(str, literals)
            report.secrets += [f"{path}: {what}" for what in tokens_in(content.decode(errors="replace"), own_words)]


def _reference(task: Task, backend: SandboxBackend, before: Tree) -> tuple[Verdict | None, set[str] | None]:
    """The verdict after the reference solution, and the paths that it changed; ``None`` where there is none."""
    if task.reference_solution is None:
        return None, None
    backend.start()
    prepare(backend, task)
    exit_code, output = run_script(backend, task.reference_solution, SOLUTION_TIMEOUT)
    after = read_tree(listing_of(backend))
    changed = {path for path in after.keys() | before.keys() if after.get(path) != before.get(path)}
    verdict = verify(backend, task)
    if verdict.status is not Status.PASSED and exit_code:
        verdict = Verdict(verdict.status, f"the solution ended with exit code {exit_code}: {output}")
    return verdict, changed


def _look_at_modes(made: Tree, base: Tree, owned: set[str], report: AuditReport) -> None:
    for path, entry in sorted(made.items()):
        old = base.get(path)
        if (old is not None and old.mode == entry.mode) or entry.kind not in ("file", "folder"):
            continue
        if entry.kind == "file" and entry.mode & _SET_ID and path not in owned:
            report.set_id.append(f"{path}: mode {entry.mode:04o}, owner {entry.owner}")
        if entry.mode & _EVERYBODY and not entry.mode & _STICKY and _SYSTEM.match(path):
            report.world_writable.append(f"{path}: mode {entry.mode:04o}")


def figures_of(reports: Sequence[AuditReport]) -> dict[str, Any]:
    """What is written: counts, and everything that was found for each task."""
    verdicts = [report.verdict for report in reports if report.verdict]
    return {
        "rows": len(reports),
        "clean": sum(report.clean for report in reports),
        "findings": sum(len(report.findings) for report in reports),
        "not_audited": sum(report.failure is not None for report in reports),
        "usable": sum(verdict.failure is None for verdict in verdicts),
        "tasks": [asdict(report) for report in reports],
    }
