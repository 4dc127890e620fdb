"""Runs a script on layers and keeps what it leaves as one more."""

import errno
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from leonardo.assets import compat
from leonardo.assets.archives import Archives
from leonardo.assets.bases import Base, Bases
from leonardo.assets.failures import classify, without_secrets
from leonardo.assets.manifest import SetUpRecord
from leonardo.assets.nodelayers import NodeLayers
from leonardo.assets.normal import normalise
from leonardo.assets.packages import INSIDE, PREPARATION, PackageNetwork
from leonardo.assets.plan import BuildSettings
from leonardo.assets.tarstream import BrokenArchive
from leonardo.errors import FailureClass, InfrastructureError
from leonardo.sandbox.driver import Driver

_PAUSE = 3.0  # seconds before the first retry; three times as long before the next
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True)
class Script:
    """What is run.

    Attributes:
        text: a script as a definition's ``%post`` has it, in the form that compat rules gave it.
        adaptation: what else they lend it.
        base: what it is run on.
        below: layers on the base, lowest first.
        slot: the folder of apt and pip that it gets; nothing else has it at the same time.
    """

    text: str
    adaptation: compat.Adaptation
    base: Base
    below: Sequence[str]
    slot: str


@dataclass(frozen=True)
class Outcome:
    """How a script ended."""

    failure: FailureClass | None
    reason: str
    log: str
    seconds: float


class Runner:
    """Safe to use from several threads.

    Args:
        root: the store; what apt and pip keep is below it.
        making: folder for what is unfinished.
    """

    def __init__(
        self,
        root: Path,
        making: Path,
        driver: Driver,
        bases: Bases,
        layers: NodeLayers,
        archives: Archives,
        settings: BuildSettings,
    ) -> None:
        self._root = root
        self._making = making
        self._driver = driver
        self._bases = bases
        self._layers = layers
        self._archives = archives
        self._settings = settings
        self._networks: dict[str, PackageNetwork] = {}
        self._whole: set[str] = set()
        self._lock = threading.Lock()

    def run(self, key: str, script: Script) -> tuple[SetUpRecord, str]:
        """Run a script and keep what it leaves. Returns the record, which is not kept, and the log.

        Raises:
            InfrastructureError: the machine is at fault.
        """
        begun = time.time()
        kept: list[SetUpRecord] = []

        def keep(archive: Path) -> None:
            with self._archives.writing() as writer:
                content = normalise(archive, writer, begun, time.time())
            self._whole.add(writer.digest)
            kept.append(
                SetUpRecord(
                    key=key,
                    delta=writer.digest,
                    compressed_bytes=writer.compressed,
                    unpacked_bytes=content.size,
                    entries=content.entries,
                    own=content.own,
                    keeps_times=content.keeps_times,
                )
            )

        outcome = self.attempt(script, keep)
        if outcome.failure is None:
            return replace(kept[-1], seconds=outcome.seconds, log=key), outcome.log
        failed = SetUpRecord(key, seconds=outcome.seconds, log=key, failure=outcome.failure, reason=outcome.reason)
        return failed, outcome.log

    def attempt(self, script: Script, keep: Callable[[Path], None] = lambda archive: None) -> Outcome:
        """Run a script, again where the network failed, and hand on the archive of what it left."""
        for attempt in range(self._settings.retries + 1):
            if attempt:
                time.sleep(_PAUSE * 3 ** (attempt - 1))
            try:
                outcome = self._try(script, keep)
            except InfrastructureError as error:
                if error.failure is not FailureClass.MIRROR or attempt == self._settings.retries:
                    raise
                continue
            if outcome.failure is not FailureClass.MIRROR or self._settings.offline:
                break
        return outcome

    def is_whole(self, record: SetUpRecord) -> bool:
        """Whether all layers of a record are there and right; each is looked at once by a process."""
        for digest in record.layers:
            if digest not in self._whole:
                if not self._archives.is_whole(digest):
                    return False
                self._whole.add(digest)
        return True

    def lent(self, base: Base, slot: str) -> Path:
        """The host's folder that a script sees at :data:`leonardo.assets.packages.INSIDE`."""
        return self._network(base).folder(slot)

    def _try(self, script: Script, keep: Callable[[Path], None]) -> Outcome:
        base, network = script.base, self._network(script.base)
        lent = network.folder(script.slot)
        timeout, limits = self._settings.timeout, self._settings.limits
        self._making.mkdir(parents=True, exist_ok=True)
        with self._failures(), TemporaryDirectory(dir=self._making, prefix="set-up-") as folder:
            archive, tools = Path(folder) / "upper.tar.gz", Path(folder) / "tools"
            tools.mkdir()
            Path(folder).chmod(0o755)  # the script's root may be nobody here
            # %environment is for the image's commands: as with Apptainer, %post does not see it
            variables = compat.lend(script.adaptation, tools, {**base.environment, **network.environment})
            with self._layers.using(base.archive, base.digest, tuple(reversed(script.below)), variables) as stack:
                if base.packages and not network.is_prepared(lent):
                    self._driver.set_up(stack, PREPARATION, archive, timeout=timeout, mounts={INSIDE: lent})
                result = self._driver.set_up(
                    stack,
                    script.text,
                    archive,
                    timeout=timeout,
                    limits=limits,
                    mounts={INSIDE: lent, compat.INSIDE: tools},
                    pretended_owners=script.adaptation.pretended_owners,
                )
            failed = classify(result, timeout)
            if failed is None:
                keep(archive)
        return Outcome(*(failed or (None, "")), without_secrets(result.log), round(result.seconds, 3))

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except BrokenArchive as error:
            raise InfrastructureError(f"what a set-up left cannot be read ({error})", "Build again") from error
        except OSError as error:
            full = error.errno in _FULL
            raise InfrastructureError(
                f"{error.filename or self._root}: {error.strerror or error}",
                "Free some space there" if full else "Look at that file",
                FailureClass.SPACE if full else FailureClass.RUNTIME,
            ) from error

    def _network(self, base: Base) -> PackageNetwork:
        with self._lock:
            if base.digest not in self._networks:
                # what a root of one id left belongs to the caller, and other roots may not write to it
                place = self._root / ("packages-one-id" if self._driver.one_id else "packages")
                self._networks[base.digest] = self._bases.network(base, place)
            return self._networks[base.digest]
