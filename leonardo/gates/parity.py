"""The parity gate: does a prepared state behave as the image that it stands for?

The image is built the long way (:mod:`leonardo.assets.fullimage`), from the same base and the same packages, and looked
at by the same means: file tree, environment, user database, what the verifier imports, and what the verifier says on
the initial state, after the reference solution, and of the row's own test of the initial state. Every difference is
listed by its path; what two builds may differ in is data with reasons (:mod:`leonardo.gates.volatile`).
"""

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from leonardo.assets.bases import Bases
from leonardo.assets.fullimage import BuildPlace, FullImage, FullImageError, builds_below, full_image
from leonardo.assets.manifest import ManifestEntry, manifest_digest
from leonardo.assets.progress import BuildProgress
from leonardo.assets.store import SET_UP_TIMEOUT, AssetStore
from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.gates.each import run_each
from leonardo.gates.observation import Observation, observe, reader
from leonardo.gates.trees import Difference, differences
from leonardo.gates.volatile import Volatile, environment_differences, is_volatile, sort_paths
from leonardo.rollout.verification import Status, Verdict
from leonardo.sandbox import apptainer
from leonardo.sandbox.driver import Driver, LayerStack
from leonardo.site import Site
from leonardo.tasks.task import Task

FIRST_SLOT = 100
"""Full builds have folders of their own for packages: set-ups of another process may use the others."""

_COUNTS = re.compile(r"\d+ (?:passed|failed|errors?|skipped|xfailed|xpassed)")


@dataclass
class ParityReport:
    """What the gate found for one task. All lists are complete."""

    task_id: str
    kind: str = ""
    tree: list[str] = field(default_factory=list)
    environment: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    behaviour: list[str] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    missing_imports: list[str] = field(default_factory=list)
    allowed: dict[str, int] = field(default_factory=dict)
    entries: int = 0
    full_megabytes: float = 0.0
    delta_kilobytes: float = 0.0
    full_seconds: float = 0.0
    prepared_seconds: float = 0.0
    check_seconds: float = 0.0
    verdicts: dict[str, str] = field(default_factory=dict)
    failure: FailureClass | None = None
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the two are the same."""
        return self.failure is None and not self.differences

    @property
    def differences(self) -> list[str]:
        """All of them, each with its path or name."""
        return [*self.tree, *self.environment, *self.users, *self.behaviour, *self.versions]

    def fail(self, failure: FailureClass, reason: str) -> None:
        """Record why nothing could be compared."""
        self.failure, self.reason = failure, reason


def run_parity(
    tasks: Sequence[Task],
    store: AssetStore,
    driver: Driver,
    site: Site,
    volatile: Volatile,
    *,
    jobs: int = 1,
    timeout: float = SET_UP_TIMEOUT,
    progress: BuildProgress | None = None,
) -> tuple[list[ParityReport], dict[str, Any]]:
    """Build prepared states and full images of ``tasks`` and compare them. Returns reports and pins."""
    progress = progress or BuildProgress()
    version = apptainer.installed().version()  # before anything is built
    entries = store.build(tasks, jobs=jobs, progress=progress)
    gate = ParityGate(store, driver, Bases(store.root / "bases", site), volatile, jobs, timeout)
    progress.start(len(tasks), "compared with full images")
    with builds_below(gate.folder):
        reports = _check_all(gate, tasks, entries, jobs, progress)
    pins = {
        "manifest": manifest_digest(entries),
        "volatile_version": volatile.version,
        "driver": driver.name,
        "apptainer": version,
        "bases": {entry.image: entry.base for entry in entries if entry.base},
    }
    return [reports[task.id] for task in tasks], pins


def _check_all(
    gate: "ParityGate", tasks: Sequence[Task], entries: Sequence[ManifestEntry], jobs: int, progress: BuildProgress
) -> dict[str, ParityReport]:
    reports: dict[str, ParityReport] = {}

    def take(report: ParityReport) -> None:
        reports[report.task_id] = report
        progress.advance()
        if not report.ok:
            progress.note(f"{report.task_id}: {report.reason or f'{len(report.differences)} differences'}")

    checks = [partial(gate.check, task, entry) for task, entry in zip(tasks, entries, strict=True)]
    run_each(checks, take, jobs=jobs, stop=gate.stop)
    return reports


class ParityGate:
    """Compares tasks one by one; safe to use from ``jobs`` threads."""

    def __init__(
        self, store: AssetStore, driver: Driver, bases: Bases, volatile: Volatile, jobs: int, timeout: float
    ) -> None:
        self._store = store
        self._driver = driver
        self._bases = bases
        self._volatile = volatile
        self._timeout = timeout
        self._stopped = threading.Event()
        self.folder = store.root / "full-images"
        self._slots: SimpleQueue[int] = SimpleQueue()
        for slot in range(jobs):
            self._slots.put(FIRST_SLOT + slot)

    def stop(self) -> None:
        """End what runs."""
        self._stopped.set()
        self._driver.close()

    def check(self, task: Task, entry: ManifestEntry) -> ParityReport:
        """Compare the prepared state of ``task`` with its full image."""
        report = ParityReport(task.id, task.kind)
        if entry.failure is not None:
            report.fail(entry.failure, entry.set_up.reason)
            return report
        if not task.definition:
            report.fail(
                FailureClass.UNSUPPORTED, "the row names an image that is ready made: there is nothing to build"
            )
            return report
        report.prepared_seconds = entry.set_up.seconds
        report.delta_kilobytes = round(entry.set_up.compressed_bytes / 1000, 1)
        slot = self._slots.get()
        try:
            self._check(task, entry, report, slot)
        except FullImageError as error:
            report.fail(error.failure, f"the full image could not be built: {error}")
        except (InfrastructureError, InputError) as error:
            report.fail(getattr(error, "failure", FailureClass.RUNTIME), str(error))
        except RuntimeError as error:  # what a sandbox could not do
            report.fail(FailureClass.RUNTIME, str(error))
        finally:
            self._slots.put(slot)
        return report

    def _check(self, task: Task, entry: ManifestEntry, report: ParityReport, slot: int) -> None:
        base = self._bases.get(entry.image)
        network = self._bases.network(base, self._store.root / "packages")
        with ExitStack() as stack:
            prepared = stack.enter_context(self._store.using(task)).stack
            place = BuildPlace(self.folder, network.folder(slot), network.environment, self._timeout, self._stopped)
            image = stack.enter_context(full_image(task.definition, base, prepared.base, place))
            report.full_seconds = image.seconds
            began = time.monotonic()
            own = tuple(path for path in prepared.own if (image.root / path).is_file())
            full = LayerStack(image.root, (), self._own_variables(image), own)
            backends = (closing(self._driver.backend(layers)) for layers in (prepared, full))
            with next(backends) as ours, next(backends) as theirs:
                left, right = observe(task, ours), observe(task, theirs)
                right = replace(right, environment=image.environment)
                ours.start()
                theirs.start()
                self._compare(report, left, right, reader(ours), reader(theirs))
            report.check_seconds = round(time.monotonic() - began, 1)

    def _own_variables(self, image: FullImage) -> dict[str, str]:
        return {
            name: value for name, value in image.environment.items() if not is_volatile(self._volatile, name, value)
        }

    def _compare(
        self,
        report: ParityReport,
        prepared: Observation,
        full: Observation,
        read_prepared: Callable[[str], bytes],
        read_full: Callable[[str], bytes],
    ) -> None:
        told = sort_paths(self._volatile, list(differences(prepared.tree, full.tree)), read_prepared, read_full)
        report.tree = list(map(str, told.found))
        report.allowed = told.allowed
        report.environment = list(
            map(str, environment_differences(self._volatile, prepared.environment, full.environment))
        )
        report.users = list(map(str, _in_mappings("user database", prepared.users, full.users)))
        report.versions = list(map(str, _in_mappings("package", prepared.packages, full.packages)))
        report.entries = len(prepared.tree)
        report.full_megabytes = round(sum(entry.size for entry in full.tree.values()) / 1e6, 1)
        report.verdicts = {name: verdict.status.value for name, verdict in prepared.verdicts.items()}
        report.behaviour = list(_in_behaviour(prepared, full))
        solved = prepared.verdicts.get("reference")
        if prepared.missing and not (solved and solved.status is Status.PASSED):
            report.missing_imports = prepared.missing
            report.behaviour.append(f"the verifier's imports are not there: {', '.join(prepared.missing)}")
        if report.versions:
            report.fail(
                FailureClass.MIRROR,
                f"the mirror gave the two different versions: {report.versions[0]}; build the prepared state anew",
            )


def _in_mappings(what: str, prepared: Mapping[str, str], full: Mapping[str, str]) -> list[Difference]:
    return [
        Difference(f"{what} {name}", "value", prepared.get(name, ""), full.get(name, ""))
        for name in sorted({*prepared, *full})
        if prepared.get(name) != full.get(name)
    ]


def _in_behaviour(prepared: Observation, full: Observation) -> list[str]:
    found = []
    for name, ours in prepared.verdicts.items():
        theirs = full.verdicts[name]
        left, right = (f"{verdict.status} {_counts(verdict)}".strip() for verdict in (ours, theirs))
        if left != right:
            found.append(f"verifier, {name}: {left}, in the full image {right}")
    if prepared.missing != full.missing:
        left, right = (", ".join(names) or "none" for names in (prepared.missing, full.missing))
        found.append(f"the verifier's imports that are not there: {left}, in the full image {right}")
    return found


def _counts(verdict: Verdict) -> str:
    """How many tests did what: pytest's last line without its time."""
    lines = verdict.output.strip().splitlines()
    return ", ".join(_COUNTS.findall(lines[-1])) if lines else ""


def figures_of(reports: Sequence[ParityReport]) -> dict[str, Any]:
    """What is written: counts, and everything that was found for each task."""
    return {
        "rows": len(reports),
        "clean": sum(report.ok for report in reports),
        "differences": sum(len(report.differences) for report in reports),
        "not_compared": sum(report.failure is not None for report in reports),
        "tasks": [asdict(report) for report in reports],
    }
