"""The asset store: bases, deltas and prepared states, built once and named by their content.

Below its root::

    bases/<digest>.tar, bases/<image>-<recipe>.json    root file systems and what they were made of
    deltas/<digest>.tar.gz                             what set-ups left on a base
    set-ups/<key>.json, logs/<key>.log                 how each set-up went (the log also where it failed)
    unpacked/<driver>/<digest>/                        layers as this node mounts them
    packages/<base>/slot-<n>/                          what apt and pip keep between set-ups
    manifest.json                                      one entry a task

Everything but a set-up's log appears whole or not at all, and everything can be removed and is made again.
"""

import fcntl
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from leonardo.assets.bases import Base, Bases
from leonardo.assets.cache import LayerCache
from leonardo.assets.compat import Rule, adapt, lacking, load_rules, rules_digest
from leonardo.assets.manifest import ManifestEntry, SetUpRecord, read_manifest, update_manifest
from leonardo.assets.prepared import PreparedState
from leonardo.assets.progress import BuildProgress
from leonardo.assets.setup import Plan, SetUps, plan_of
from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.files import sha256_file
from leonardo.sandbox.driver import Driver, LayerStack, Limits
from leonardo.site import Site
from leonardo.tasks.definition import UnsupportedDefinition
from leonardo.tasks.task import Task

SET_UP_TIMEOUT = 900.0
"""Seconds that a set-up may take."""

SET_UP_LIMITS = Limits(disk=4 << 30, memory=8 << 30, processes=4096)


class AssetStore:
    """Builds and hands out prepared states. Safe to use from several threads; builds of several processes take turns.

    Args:
        root: folder of the store, made if absent.
        driver: unpacks layers and runs set-ups.
        site: says how base images are got.
        timeout: seconds that a set-up may take.
        limits: bounds of a set-up.
        rules: compat rules for the set-ups, by default those of ``launch/compat``.
        most_unpacked: bytes that unpacked deltas may take on this node; None for no bound. With one, :meth:`using`
            says how long a delta is needed.
    """

    def __init__(
        self,
        root: Path,
        driver: Driver,
        site: Site,
        *,
        timeout: float = SET_UP_TIMEOUT,
        limits: Limits = SET_UP_LIMITS,
        most_unpacked: int | None = None,
        rules: Sequence[Rule] | None = None,
    ) -> None:
        self.root = root
        self._driver = driver
        self._bases = Bases(root / "bases", site)
        # layers unpacked by different drivers differ in owners and attributes
        self._unpacked = root / "unpacked" / (f"{driver.name}-degraded" if driver.degraded else driver.name)
        self.cache = LayerCache(self._unpacked, driver.remove, most_unpacked)
        self._set_ups = SetUps(root, self._unpacked, driver, self._bases, timeout, limits)
        self._rules = load_rules() if rules is None else tuple(rules)
        self._known_bases: dict[str, Base] = {}
        self._plans: dict[str, Plan] = {}
        self._prepared: dict[str, PreparedState] = {}
        self._built: dict[str, dict[str, Any]] = {}
        self._layer_locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    # --- building -----------------------------------------------------------------------------------------------------

    def build(
        self, tasks: Sequence[Task], *, jobs: int = 2, progress: BuildProgress | None = None
    ) -> list[ManifestEntry]:
        """Build the prepared states of ``tasks``, ``jobs`` at a time; what is there and whole is not built again.

        A task whose prepared state cannot be had gets an entry with its failure; it is tried again by the next build.
        Interrupted (KeyboardInterrupt), the driver is closed, which ends what runs; what was finished is kept.

        Returns:
            One entry a task, in the order of ``tasks``.

        Raises:
            InputError: a definition that is none; names the task. Nothing has been built then.
        """
        progress = progress or BuildProgress()
        plans = {task.digest: self._plan(task) for task in tasks}
        with self._turn(progress):
            self._remove_unfinished()
            failures: dict[str, SetUpRecord] = {}
            for image in sorted({plan.image for plan in plans.values() if isinstance(plan, Plan)}):
                try:
                    base = self._base(image, progress.note)
                    self._layer(base.archive, base.digest)
                except InfrastructureError as error:
                    progress.note(f"base {image}: {error}")
                    failures[image] = SetUpRecord(key="", failure=error.failure, reason=str(error))
            entries: dict[str, ManifestEntry] = {}
            waiting: dict[str, list[Task]] = {}
            wanted: dict[str, tuple[Plan, Base]] = {}
            progress.start(len(tasks))

            def finish(task: Task, record: SetUpRecord) -> None:
                entries[task.digest] = self._entry(task, plans[task.digest], record)
                progress.done(entries[task.digest])

            for task in tasks:
                plan = plans[task.digest]
                if isinstance(plan, SetUpRecord):
                    finish(task, plan)
                elif plan.image in failures:
                    finish(task, failures[plan.image])
                else:
                    base = self._known_bases[plan.image]
                    plan = plans[task.digest] = self._adapted(plan, task, base)
                    key = self._set_ups.key(plan, base)
                    wanted[key] = (plan, base)
                    waiting.setdefault(key, []).append(task)
            try:
                for record in self._set_ups.run(wanted, jobs):
                    for task in waiting[record.key]:
                        finish(task, record)
            except KeyboardInterrupt:
                self._driver.close()
                raise
            finally:
                update_manifest(self.root / "manifest.json", entries.values())
        return [entries[task.digest] for task in tasks]

    def _plan(self, task: Task) -> Plan | SetUpRecord:
        """What is to be done for a task, or why it cannot be."""
        try:
            return plan_of(task)
        except UnsupportedDefinition as error:
            return SetUpRecord(key="", failure=FailureClass.UNSUPPORTED, reason=str(error))
        except InputError as error:
            raise InputError(f"Task {task.id}: {error.what}", error.hint) from error

    def _adapted(self, plan: Plan, task: Task, base: Base) -> Plan:
        """``plan`` as the compat rules make it; once per plan."""
        if plan.adaptation.script or not plan.post:
            return plan
        verifier = "\n".join(content.decode(errors="replace") for _, content in sorted(task.tests.items()))
        lacks = lacking(one_id=self._driver.one_id, substituted=bool(base.substitution))
        adaptation = adapt(plan.post, verifier, self._rules, lacks)
        environment = {**adaptation.environment, **plan.environment}
        return replace(plan, post=adaptation.script, environment=environment, adaptation=adaptation)

    def adapted(self, task: Task) -> Plan:
        """What is to be done for a task here, with what compat rules make of it; makes its base if it is not there.

        Raises:
            InputError: its definition is none, or asks for what is not honoured.
        """
        plan = self._plan(task)
        if isinstance(plan, SetUpRecord):
            raise InputError(f"Task {task.id}: {plan.reason}")
        return self._adapted(plan, task, self._base(plan.image, lambda text: None))

    def _entry(self, task: Task, plan: Plan | SetUpRecord, record: SetUpRecord) -> ManifestEntry:
        image = plan.image if isinstance(plan, Plan) else task.image
        base = self._known_bases.get(image)
        if base is None or not isinstance(plan, Plan):
            return ManifestEntry(task.id, task.digest, image, record, pins=self._pins())
        return ManifestEntry(
            task_id=task.id,
            task_digest=task.digest,
            image=image,
            set_up=record,
            base=base.digest,
            substitution=base.substitution,
            registry_failure=base.registry_failure,
            environment={**base.environment, **plan.environment},
            pins=self._pins(),
        )

    def _pins(self) -> dict[str, object]:
        return {"driver": self._driver.name, "degraded": self._driver.degraded, **self._set_ups.pins} | {
            "rules": rules_digest(self._rules)
        }

    @contextmanager
    def _turn(self, progress: BuildProgress) -> Iterator[None]:
        """Hold the store's lock: one build at a time."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("w") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress.note(f"another build works on {self.root}: waiting for it")
                fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def _remove_unfinished(self) -> None:
        """Remove what a build that was killed left behind."""
        for path in [*self.root.glob("deltas/.*"), *self.root.glob("bases/.*")]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)

    # --- handing out --------------------------------------------------------------------------------------------------

    def prepared(self, task: Task) -> PreparedState:
        """The prepared state of a task that was built, unpacked on this node.

        Raises:
            InputError: it was not built, or could not be; says why.
        """
        if known := self._prepared.get(task.digest):
            return known
        base, entry = self._built_entry(task)
        record = entry.set_up
        deltas = (self._layer(self._set_ups.archive(record.delta), record.delta),) if record.delta else ()
        stack = LayerStack(self._layer(base.archive, base.digest), deltas, entry.environment, record.own)
        # two threads may get here at once: they have made the same
        return self._prepared.setdefault(task.digest, PreparedState(entry.prepared, stack))

    @contextmanager
    def using(self, task: Task) -> Iterator[PreparedState]:
        """:meth:`prepared`, and its delta stays unpacked during the block: the cache removes what nobody uses."""
        base, entry = self._built_entry(task)
        record, folder = entry.set_up, self._layer(base.archive, base.digest)
        if not record.delta:
            yield PreparedState(entry.prepared, LayerStack(folder, (), entry.environment, record.own))
            return
        archive = self._set_ups.archive(record.delta)
        with self.cache.using(
            record.delta, record.unpacked_bytes, lambda _: self._layer(archive, record.delta)
        ) as delta:
            yield PreparedState(entry.prepared, LayerStack(folder, (delta,), entry.environment, record.own))

    def _built_entry(self, task: Task) -> tuple[Base, ManifestEntry]:
        plan = self._plans.get(task.digest) or self._plan(task)
        if isinstance(plan, SetUpRecord):
            raise InputError(f"Task {task.id} has no prepared state: {plan.reason}")
        base = self._base(plan.image, lambda text: None)
        plan = self._plans[task.digest] = self._adapted(plan, task, base)
        record = self._set_ups.read(self._set_ups.key(plan, base)) if plan.post else SetUpRecord(key="")
        if record is None or record.failure is not None:
            why = record.reason if record else "it was not built"
            raise InputError(f"Task {task.id} has no prepared state: {why}", "Build it first")
        return base, self._entry(task, plan, record)

    def named(self, digest: str) -> PreparedState:
        """The prepared state that the manifest names by ``digest``, unpacked on this node.

        Raises:
            InputError: the manifest has none of that name.
        """
        if digest not in self._built:
            entries = read_manifest(self.root / "manifest.json").values()
            self._built = {entry["prepared"]: entry for entry in entries if entry.get("prepared")}
        entry = self._built.get(digest)
        if entry is None:
            raise InputError(f"{self.root} has no prepared state {digest}", "Build it first")
        record = SetUpRecord.from_json(entry["set_up"])
        deltas = (self._layer(self._set_ups.archive(record.delta), record.delta),) if record.delta else ()
        base = self._layer(self.root / "bases" / f"{entry['base']}.tar", entry["base"])
        return PreparedState(digest, LayerStack(base, deltas, entry["environment"], record.own))

    def _base(self, image: str, note: Callable[[str], None]) -> Base:
        with self._lock:
            if image not in self._known_bases:
                self._known_bases[image] = self._bases.get(image, note)
            return self._known_bases[image]

    def _layer(self, archive: Path, digest: str) -> Path:
        """The unpacked folder of an archive."""
        folder = self._unpacked / digest
        with self._lock:
            lock = self._layer_locks.setdefault(digest, threading.Lock())
        with lock:
            if not folder.is_dir():
                if not archive.is_file() or sha256_file(archive) != digest:
                    raise InfrastructureError(f"{archive} is missing or damaged", "Remove it and build again")
                folder.parent.mkdir(parents=True, exist_ok=True)
                self._driver.unpack(archive, folder)
        return folder
