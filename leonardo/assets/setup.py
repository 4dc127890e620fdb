"""Set-ups: a definition's script, run once on its base, and what it left kept as a delta."""

import json
import queue
import shutil
import tarfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from leonardo.assets import compat
from leonardo.assets.bases import Base, Bases
from leonardo.assets.failures import classify, without_secrets
from leonardo.assets.manifest import SetUpRecord
from leonardo.assets.packages import INSIDE, PREPARATION, PackageNetwork
from leonardo.errors import InfrastructureError
from leonardo.files import digest_of, sha256_file, write_atomic
from leonardo.sandbox.driver import Driver, LayerStack, Limits
from leonardo.site import normal_image
from leonardo.tasks.definition import parse_definition
from leonardo.tasks.task import Task

RECIPE_VERSION = 2
"""Raise it where the same script on the same base would now leave something else."""

MOST_OWN_FILES = 256
MOST_OWN_BYTES = 1 << 20
"""Bounds of what is copied at each reset: a millisecond or two."""

# what a distribution fills; what a task is about lies elsewhere
_SYSTEM_FOLDERS = frozenset(("usr", "var", "etc", "bin", "sbin", "lib", "lib32", "lib64", "boot", "dev", "proc", "sys"))


@dataclass(frozen=True)
class Plan:
    """What has to be done for a task.

    Attributes:
        image: its base image, by its normal name.
        post: its set-up script, ``""`` if there is none.
        environment: variables that its definition adds, and those of compat rules.
        adaptation: what compat rules made of the script; ``post`` is its outcome.
    """

    image: str
    post: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    adaptation: compat.Adaptation = compat.NONE


def plan_of(task: Task) -> Plan:
    """What has to be done for ``task``. Raises InputError where its definition is none, or asks for too much."""
    if not task.definition:
        return Plan(normal_image(task.image))
    definition = parse_definition(task.definition)
    return Plan(normal_image(definition.image), definition.post, definition.environment)


class SetUps:
    """Runs set-ups on the bases below ``unpacked`` and keeps their deltas, logs and records below ``root``."""

    def __init__(
        self, root: Path, unpacked: Path, driver: Driver, bases: Bases, timeout: float, limits: Limits
    ) -> None:
        self._root = root
        self._unpacked = unpacked
        self._driver = driver
        self._bases = bases
        self._timeout = timeout
        self._limits = limits
        self._networks: dict[str, PackageNetwork] = {}
        self._lock = threading.Lock()
        self._alone = threading.Lock()

    @property
    def pins(self) -> dict[str, object]:
        """What else decides how a set-up goes."""
        return {"recipe_version": RECIPE_VERSION, "set_up_timeout": self._timeout}

    def key(self, plan: Plan, base: Base) -> str:
        """Names a set-up by all that decides its outcome."""
        what = [RECIPE_VERSION, base.digest, plan.post, {**base.environment, **plan.environment}]
        return digest_of([*what, plan.adaptation.digests] if plan.adaptation.applied else what)

    def archive(self, digest: str) -> Path:
        """Where a delta's archive is kept."""
        return self._root / "deltas" / f"{digest}.tar.gz"

    def read(self, key: str) -> SetUpRecord | None:
        """The record of a set-up, ``None`` where there is none."""
        try:
            return SetUpRecord.from_json(json.loads(self._record(key).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def run(self, wanted: Mapping[str, tuple[Plan, Base]], jobs: int) -> Iterator[SetUpRecord]:
        """Run the set-ups named by ``wanted``, ``jobs`` at a time, and yield their records as they end.

        What went well before and is still whole is not run again. When the caller stops early, so does this: nothing
        more is begun, and what runs is waited for (the driver's close ends it).
        """
        slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(jobs):
            slots.put(slot)
        for name in ("deltas", "set-ups", "logs"):
            (self._root / name).mkdir(parents=True, exist_ok=True)
        pool = ThreadPoolExecutor(jobs, thread_name_prefix="set-up")
        futures: list[Future[SetUpRecord]] = []
        try:
            futures += [pool.submit(self._one, key, plan, base, slots) for key, (plan, base) in wanted.items()]
            for future in as_completed(futures):
                yield future.result()
        except (GeneratorExit, KeyboardInterrupt):
            self._driver.close()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _record(self, key: str) -> Path:
        return self._root / "set-ups" / f"{key}.json"

    def _one(self, key: str, plan: Plan, base: Base, slots: "queue.SimpleQueue[int]") -> SetUpRecord:
        if not plan.post:
            return SetUpRecord(key=key)
        known = self.read(key)
        if known is not None and known.failure is None and self._is_whole(known.delta):
            return known
        if (skip := plan.adaptation.skip) is not None:
            record = SetUpRecord(key=key, failure=skip.failure, reason=skip.reason)
        else:
            with self._alone if plan.adaptation.alone else nullcontext():
                record = self._run_in_slot(key, plan, base, slots)
        record = replace(record, rules=plan.adaptation.names)
        write_atomic(self._record(key), json.dumps(asdict(record)) + "\n")
        return record

    def _run_in_slot(self, key: str, plan: Plan, base: Base, slots: "queue.SimpleQueue[int]") -> SetUpRecord:
        slot = slots.get()
        try:
            return self._run(key, plan, base, slot)
        except InfrastructureError as error:
            return SetUpRecord(key=key, failure=error.failure, reason=str(error))
        finally:
            slots.put(slot)

    def _is_whole(self, delta: str) -> bool:
        archive = self.archive(delta)
        return archive.is_file() and sha256_file(archive) == delta

    def _run(self, key: str, plan: Plan, base: Base, slot: int) -> SetUpRecord:
        network = self._network(base)
        making = self._root / "deltas" / f".{key}.tar.gz"
        # %environment is for the image's commands: as with Apptainer, %post does not see it
        lent = making.with_name(f".{key}.lent")
        lent.mkdir(exist_ok=True)
        environment = compat.lend(plan.adaptation, lent, {**base.environment, **network.environment})
        stack = LayerStack(self._unpacked / base.digest, (), environment)
        folder = network.folder(slot)
        try:
            if base.packages and not network.is_prepared(folder):
                self._driver.set_up(stack, PREPARATION, making, timeout=self._timeout, mounts={INSIDE: folder})
            result = self._driver.set_up(
                stack,
                plan.post,
                making,
                timeout=self._timeout,
                limits=self._limits,
                mounts={INSIDE: folder, compat.INSIDE: lent},
                pretended_owners=plan.adaptation.pretended_owners,
            )
            log = self._root / "logs" / f"{key}.log"
            log.write_text(without_secrets(result.log), errors="replace")
            if failed := classify(result, self._timeout):
                failure, reason = failed
                return SetUpRecord(key, seconds=result.seconds, log=log.name, failure=failure, reason=reason)
            digest = sha256_file(making)
            content = _look_into(making)
            compressed = making.stat().st_size
            making.replace(self.archive(digest))
            return SetUpRecord(
                key=key,
                delta=digest,
                compressed_bytes=compressed,
                unpacked_bytes=content.size,
                entries=content.entries,
                seconds=round(result.seconds, 3),
                own=content.own,
                log=log.name,
            )
        finally:
            with suppress(FileNotFoundError):
                making.unlink()
            shutil.rmtree(lent)

    def _network(self, base: Base) -> PackageNetwork:
        with self._lock:
            if base.digest not in self._networks:
                self._networks[base.digest] = self._bases.network(base, self._root / "packages")
            return self._networks[base.digest]


@dataclass(frozen=True)
class _Content:
    """What a delta holds: entries, bytes of file content, and the files that a task is about."""

    entries: int
    size: int
    own: tuple[str, ...]


def _look_into(archive: Path) -> _Content:
    entries = size = own_size = 0
    own: list[str] = []
    with tarfile.open(archive) as content:
        for member in content:
            entries += 1
            size += member.size
            path = member.name.removeprefix("./")
            if not (member.isreg() or member.islnk()) or path.split("/")[0] in _SYSTEM_FOLDERS:
                continue
            if len(own) < MOST_OWN_FILES and own_size + member.size <= MOST_OWN_BYTES:
                own.append(path)
                own_size += member.size
    return _Content(entries, size, tuple(own))
