"""Set-ups: a definition's script, run once on its base, and what it left kept as layers.

The packages that a script begins with become layers that other tasks share (:mod:`leonardo.assets.split`); the rest is
run on top of them. Where the packages cannot be had that way the script is run as it is and leaves one layer.
"""

import queue
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import nullcontext, suppress
from dataclasses import replace

from leonardo.assets.bases import Base
from leonardo.assets.catalogue import Catalogue
from leonardo.assets.manifest import SetUpRecord
from leonardo.assets.normal import NORMAL_VERSION
from leonardo.assets.packagelayers import Chain, PackageLayers, offline
from leonardo.assets.plan import RECIPE_VERSION, BuildSettings, Plan
from leonardo.assets.runner import Runner, Script
from leonardo.assets.split import Split, split
from leonardo.errors import InfrastructureError
from leonardo.files import digest_of
from leonardo.sandbox.driver import Driver


class SetUps:
    """Runs set-ups and keeps their records.

    Args:
        slots: what the names of its slots begin with: builders that run at the same time share none.
    """

    def __init__(
        self,
        slots: str,
        driver: Driver,
        runner: Runner,
        packages: PackageLayers,
        catalogue: Catalogue,
        settings: BuildSettings,
    ) -> None:
        self._slots = slots
        self._driver = driver
        self._runner = runner
        self._packages = packages
        self._catalogue = catalogue
        self._settings = settings
        self._one_at_a_time = threading.Lock()

    @property
    def pins(self) -> dict[str, object]:
        """What else decides how a set-up goes."""
        return {
            "recipe_version": RECIPE_VERSION,
            "normal_version": NORMAL_VERSION,
            "set_up_timeout": self._settings.timeout,
        }

    def key(self, plan: Plan, base: Base) -> str:
        """Names a set-up by all that decides its outcome."""
        what = [base.digest, base.environment, plan.post, self._settings.split, plan.adaptation.digests]
        return digest_of([RECIPE_VERSION, NORMAL_VERSION, *what])

    def run(self, wanted: Mapping[str, tuple[Plan, Base]], jobs: int) -> Iterator[SetUpRecord]:
        """Run the set-ups named by ``wanted``, ``jobs`` at a time, and yield their records as they end.

        What went well before and is still whole is not run again. When the caller stops early, so does this: nothing
        more is begun, and what runs is waited for (the driver's close ends it).
        """
        slots: queue.SimpleQueue[str] = queue.SimpleQueue()
        for number in range(jobs):
            slots.put(f"{self._slots}{number}")
        # those with the same packages after one another, so that their layers are at hand
        order = sorted(wanted.items(), key=lambda item: [step.script for step in self._split(*item[1]).steps])
        pool = ThreadPoolExecutor(jobs, thread_name_prefix="set-up")
        futures: list[Future[SetUpRecord]] = []
        try:
            futures += [pool.submit(self._one, key, plan, base, slots) for key, (plan, base) in order]
            for future in as_completed(futures):
                yield future.result()
        except (GeneratorExit, KeyboardInterrupt):
            self._driver.close()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def build(self, key: str, plan: Plan, base: Base, slot: str, *, in_layers: bool = True) -> tuple[SetUpRecord, str]:
        """Run a set-up. Returns its record and log, neither of which is kept; its layers are.

        ``in_layers``: its packages as layers of their own, where that can be.

        Raises:
            InfrastructureError: the machine is at fault.
        """
        if (skip := plan.adaptation.skip) is not None:
            return SetUpRecord(key=key, failure=skip.failure, reason=skip.reason, rules=plan.adaptation.names), ""
        parts = self._split(plan, base) if in_layers else Split((), plan.post)
        chain = self._packages.chain(parts.steps, base, slot)
        if chain.failed:
            return replace(chain.failed, key=key, delta="", rules=plan.adaptation.names), ""
        if chain.whole:
            parts = Split((), plan.post)
        return self._finish(key, plan, base, slot, parts.rest, chain)

    def _finish(self, key: str, plan: Plan, base: Base, slot: str, rest: str, chain: Chain) -> tuple[SetUpRecord, str]:
        """Run what is left of a script on its packages."""
        about = {"packages": chain.layers, "one_layer": chain.whole, "rules": plan.adaptation.names}
        if not rest:
            return replace(SetUpRecord(key=key), **about), ""
        if self._settings.offline and rest == plan.post and split(rest).steps:
            raise offline("its packages")
        with self._one_at_a_time if plan.adaptation.alone else nullcontext():
            record, log = self._runner.run(key, Script(rest, plan.adaptation, base, chain.layers, slot))
        if record.failure is not None:
            about["packages"] = ()
        return replace(record, **about), log

    def _one(self, key: str, plan: Plan, base: Base, slots: "queue.SimpleQueue[str]") -> SetUpRecord:
        if not plan.post:
            return SetUpRecord(key=key)
        slot = slots.get()
        try:
            known = self._catalogue.record(key)
            if known is not None and known.failure is None and self._runner.is_whole(known):
                return known
            record, log = self.build(key, plan, base, slot)
            self._catalogue.put_record(record, log)
        except InfrastructureError as error:
            record = SetUpRecord(key, failure=error.failure, reason=str(error), rules=plan.adaptation.names)
            with suppress(InfrastructureError):  # where it cannot be noted, the next build finds nothing, and tries
                self._catalogue.put_record(record)
        finally:
            slots.put(slot)
        return record

    def _split(self, plan: Plan, base: Base) -> Split:
        if not self._settings.split or not base.packages:
            return Split((), plan.post)
        return split(plan.post)
