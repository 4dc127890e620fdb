"""The asset store: bases, layers and prepared states, built once and named by their content.

Below its root::

    bases/<digest>.tar, bases/<image>-<recipe>.json    root file systems and what they were made of
    layers/<digest>.tar.zst                            what set-ups left on a base, where that is much
    catalogue/<builder>.db                             what they left where that is little, their records and logs
    manifest.json                                      one entry a task
    unpacked/<driver>/<digest>/                        layers as this node mounts them
    packages/<base>/slot-<n>/                          what apt and pip keep between set-ups
    locks/, making/<builder>/                          who works here, and what is unfinished

Everything appears whole or not at all, is believed only when its content is what its name says, and can be removed and
is made again.
"""

import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from leonardo.assets.archives import Archives
from leonardo.assets.bases import Base, Bases
from leonardo.assets.cache import LayerCache
from leonardo.assets.catalogue import Catalogue
from leonardo.assets.compat import Rule, load_rules
from leonardo.assets.locks import StoreLocks
from leonardo.assets.manifest import ManifestEntry, SetUpRecord, read_manifest, update_manifest
from leonardo.assets.namedstates import NamedStates
from leonardo.assets.nodelayers import NodeLayers, layers_folder
from leonardo.assets.nodestates import NodeStates
from leonardo.assets.packagelayers import PackageLayers
from leonardo.assets.plan import SET_UP_TIMEOUT as SET_UP_TIMEOUT
from leonardo.assets.plan import BuildSettings, Plan, Planner
from leonardo.assets.prepared import PreparedState
from leonardo.assets.progress import BuildProgress
from leonardo.assets.runner import Runner
from leonardo.assets.setup import SetUps
from leonardo.errors import InfrastructureError, InputError
from leonardo.files import require_writable
from leonardo.sandbox.driver import Driver, LayerStack, Limits
from leonardo.site import Site
from leonardo.tasks.task import Task

_NOTE_EVERY = 10.0  # seconds between two writings of the manifest, which takes longer the more tasks it has

MAIN = "main"
"""The builder of a store that has only one."""


class AssetStore:
    """Builds and hands out prepared states. Safe to use from several threads; builders of one name take turns.

    Args:
        root: folder of the store, made if absent.
        driver: unpacks layers and runs set-ups.
        site: says how base images are got.
        timeout: seconds that a set-up may take; ``settings`` has the rest.
        limits: bounds of a set-up.
        settings: how set-ups are run.
        rules: compat rules for the set-ups, by default those of ``launch/compat``.
        most_unpacked: bytes that unpacked layers may take on this node; None for no bound. With one, :meth:`using`
            says how long they are needed.
        builder: builders that work at the same time on a store that several nodes share have a name each.
    """

    def __init__(
        self,
        root: Path,
        driver: Driver,
        site: Site,
        *,
        timeout: float | None = None,
        limits: Limits | None = None,
        settings: BuildSettings | None = None,
        rules: Sequence[Rule] | None = None,
        most_unpacked: int | None = None,
        builder: str = MAIN,
    ) -> None:
        self.root = root
        self.locks = StoreLocks(root)
        self._driver = driver
        self._builder = builder
        self._making = root / "making" / builder
        values = vars(settings or BuildSettings())
        given = {"timeout": timeout, "limits": limits}
        self._settings = BuildSettings(**values | {name: value for name, value in given.items() if value is not None})
        self._bases = Bases(root / "bases", site)
        self.catalogue = Catalogue(root / "catalogue", builder)
        self.archives = Archives(root / "layers", self.catalogue, self._making)
        folder = layers_folder(site.node_cache or root / "unpacked", driver)
        self.cache = LayerCache(folder, driver.remove, most_unpacked)
        self._layers = NodeLayers(driver, self.archives, self.cache, self.locks.use)
        self.named = NamedStates(root, NodeStates(site.node_cache, root), self._layers, self.locks.use)
        slots = "" if builder == MAIN else f"{builder}-"
        self._planner = Planner(driver, load_rules() if rules is None else tuple(rules))
        parts = (self._bases, self._layers, self.archives, self._settings)
        runner = Runner(root, self._making, driver, *parts)
        packages = PackageLayers(root / "locks", runner, self.catalogue, self._settings, self._planner.adapt)
        self._set_ups = SetUps(slots, driver, runner, packages, self.catalogue, self._settings)
        self._known_bases: dict[str, Base] = {}
        self._prepared: dict[str, PreparedState] = {}
        self._lock = threading.Lock()

    # --- building -----------------------------------------------------------------------------------------------------

    def build(
        self, tasks: Sequence[Task], *, jobs: int = 2, progress: BuildProgress | None = None, strict: bool = False
    ) -> list[ManifestEntry]:
        """Build the prepared states of ``tasks``, ``jobs`` at a time; what is there and whole is not built again.

        A task whose prepared state cannot be had gets an entry with its failure; it is tried again by the next build.
        Interrupted (KeyboardInterrupt), the driver is closed, which ends what runs; what was finished is kept.

        Returns:
            One entry a task, in the order of ``tasks``.

        Raises:
            InputError: a definition that is none, names the task; a store that cannot be written to. Nothing has been
                built then.
            InfrastructureError: a base image cannot be had, and ``strict`` says that nothing is worth building then.
        """
        progress = progress or BuildProgress()
        plans = {task.digest: self._planner.plan(task) for task in tasks}
        require_writable(self.root)
        with self.turn(progress):
            self.catalogue.check()
            failures: dict[str, SetUpRecord] = {}
            for image in sorted({plan.image for plan in plans.values() if isinstance(plan, Plan)}):
                try:
                    base = self._base(image, progress.note)
                    self._layers.stack(base.archive, base.digest, (), {})
                except InfrastructureError as error:
                    if strict:
                        raise
                    failures[image] = SetUpRecord(key="", failure=error.failure, reason=str(error))
            entries: dict[str, ManifestEntry] = {}
            waiting: dict[str, list[Task]] = {}
            wanted: dict[str, tuple[Plan, Base]] = {}
            progress.start(len(tasks))

            next_note = time.monotonic() + _NOTE_EVERY

            def finish(task: Task, record: SetUpRecord) -> None:
                nonlocal next_note
                entries[task.digest] = self._entry(task, plans[task.digest], record)
                progress.done(entries[task.digest])
                if (now := time.monotonic()) > next_note:
                    self.add_to_manifest(entries.values())
                    next_note = time.monotonic() + max(_NOTE_EVERY, 20 * (time.monotonic() - now))

            for task in tasks:
                plan = plans[task.digest]
                if isinstance(plan, SetUpRecord):
                    finish(task, plan)
                elif plan.image in failures:
                    finish(task, failures[plan.image])
                else:
                    base = self._known_bases[plan.image]
                    plan = plans[task.digest] = self._planner.adapted(plan, task, base)
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
                self.add_to_manifest(entries.values())
        return [entries[task.digest] for task in tasks]

    def log(self, record: SetUpRecord) -> str:
        """What a set-up wrote, ``""`` where that is not known."""
        return self.catalogue.log(record.log) if record.log else ""

    def again(self, task: Task, *, in_layers: bool = True) -> ManifestEntry:
        """Run the set-up of a built task once more, in layers as ever or whole. Its layers are kept, its record is not.

        Raises:
            InputError: it was not built.
            InfrastructureError: the machine is at fault.
        """
        base, entry, plan = self._found(task)
        with self.turn(BuildProgress()):
            record, _ = self._set_ups.build(entry.set_up.key, plan, base, "again", in_layers=in_layers)
        return self._entry(task, plan, record)

    def add_to_manifest(self, entries: Iterable[ManifestEntry]) -> None:
        """Put entries into the manifest, whoever else does at the same time."""
        with self.locks.alone("manifest"):
            update_manifest(self.root / "manifest.json", entries)

    def outlook(self, tasks: Sequence[Task]) -> tuple[list[str], list[str]]:
        """Before a build: base images that are not here, and in words those that earlier builds had otherwise."""
        plans = [plan for task in tasks if isinstance(plan := self._planner.plan(task), Plan)]
        manifest = read_manifest(self.root / "manifest.json").values()
        missing, moved = [], []
        for image in sorted({plan.image for plan in plans}):
            try:
                known = self._bases.known(image)
            except InfrastructureError:
                missing.append(image)
                continue
            built = [entry for entry in manifest if entry.get("image") == image and entry.get("prepared")]
            others = [entry for entry in built if entry["base"] != known.digest]
            if others:
                moved.append(f"{image} is another base now: {len(others)} rows that were built on others stay on them")
        return missing, moved

    def entry(self, task: Task) -> ManifestEntry | None:
        """The entry of a task that is built here, ``None`` where it is not."""
        try:
            return self._found(task)[1]
        except InputError:
            return None

    def adapted(self, task: Task) -> Plan:
        """What is to be done for a task here, with what compat rules make of it; makes its base if it is not there.

        Raises:
            InputError: its definition is none, or asks for what is not honoured.
        """
        plan = self._planner.plan(task)
        if isinstance(plan, SetUpRecord):
            raise InputError(f"Task {task.id}: {plan.reason}")
        try:
            base = self._known_base(plan.image)  # a store of others' may be read only
        except InfrastructureError:
            self.root.mkdir(parents=True, exist_ok=True)
            base = self._base(plan.image, lambda text: None)
        return self._planner.adapted(plan, task, base)

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
        return {
            "driver": self._driver.name,
            "degraded": self._driver.degraded,
            "rules": self._planner.rules,
            **self._set_ups.pins,
        }

    @contextmanager
    def turn(self, progress: BuildProgress) -> Iterator[None]:
        """Hold this builder's lock, and remove what one that was killed left unfinished."""
        self.locks.use()
        with self.locks.alone(f"builder-{self._builder}", progress):
            shutil.rmtree(self._making, ignore_errors=True)
            try:
                yield
            finally:
                shutil.rmtree(self._making, ignore_errors=True)

    def close(self) -> None:
        """Let others remove things. May be called twice; what is asked for later begins anew."""
        self.locks.release()
        self.catalogue.close()

    # --- handing out --------------------------------------------------------------------------------------------------

    def prepared(self, task: Task) -> PreparedState:
        """The prepared state of a task that was built, unpacked on this node.

        Raises:
            InputError: it was not built, or could not be; says why.
        """
        if known := self._prepared.get(task.digest):
            return known
        entry = self._found(task)[1]
        # two threads may get here at once: they make the same
        return self._prepared.setdefault(task.digest, PreparedState(entry.prepared, self.stack(entry)))

    def stack(self, entry: ManifestEntry) -> LayerStack:
        """The layers of a state that was built, unpacked on this node."""
        self.locks.use()
        record, base = entry.set_up, self.root / "bases" / f"{entry.base}.tar"
        return self._layers.stack(base, entry.base, record.layers, entry.environment, record.own)

    @contextmanager
    def using(self, task: Task) -> Iterator[PreparedState]:
        """:meth:`prepared`, and its layers stay unpacked during the block: the cache removes what nobody uses."""
        base, entry, _ = self._found(task)
        record = entry.set_up
        self.locks.use()
        with self._layers.using(base.archive, base.digest, record.layers, entry.environment, record.own) as stack:
            yield PreparedState(entry.prepared, stack)

    def _found(self, task: Task) -> tuple[Base, ManifestEntry, Plan]:
        plan = self._planner.plan(task)
        if isinstance(plan, SetUpRecord):
            raise InputError(f"Task {task.id} has no prepared state: {plan.reason}")
        try:
            base = self._known_base(plan.image)
        except InfrastructureError as error:
            raise InputError(f"Task {task.id} has no prepared state: it was not built", "Build it first") from error
        plan = self._planner.adapted(plan, task, base)
        record = self.catalogue.record(self._set_ups.key(plan, base)) if plan.post else SetUpRecord(key="")
        if record is None or record.failure is not None:
            why = record.reason if record else "it was not built"
            raise InputError(f"Task {task.id} has no prepared state: {why}", "Build it first")
        return base, self._entry(task, plan, record), plan

    def _base(self, image: str, note: Callable[[str], None]) -> Base:
        with self._lock:
            if image not in self._known_bases:
                with self.locks.alone("bases"):
                    offline = self._settings.offline
                    self._known_bases[image] = self._bases.known(image) if offline else self._bases.get(image, note)
            return self._known_bases[image]

    def _known_base(self, image: str) -> Base:
        with self._lock:
            if image not in self._known_bases:
                self._known_bases[image] = self._bases.known(image)
            return self._known_bases[image]
