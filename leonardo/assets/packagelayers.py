"""Package layers: the installs that scripts begin with, each made once on a base and shared by all that begin so.

A step whose names hold the core packages becomes two layers, the core's and the others'. That is kept only where apt
would install the same packages at once: it is asked, by a simulation on what is below.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from leonardo.assets.bases import Base
from leonardo.assets.catalogue import Catalogue
from leonardo.assets.manifest import SetUpRecord
from leonardo.assets.normal import NORMAL_VERSION
from leonardo.assets.packages import INSIDE
from leonardo.assets.plan import RECIPE_VERSION, Adapt, BuildSettings
from leonardo.assets.runner import Runner, Script
from leonardo.assets.split import PackageStep
from leonardo.errors import FailureClass, InfrastructureError
from leonardo.files import digest_of
from leonardo.holding import in_turn

_INSTALLED = "dpkg-query -W -f '${Package}=${Version}\\n'"
_INFRASTRUCTURE = (FailureClass.MIRROR, FailureClass.SPACE, FailureClass.RUNTIME)


@dataclass(frozen=True)
class Chain:
    """Package layers on a base, lowest first.

    Attributes:
        key: names the chain by what it was made of.
        failed: the record of a layer that the machine could not make.
        whole: why the script has to be run in one piece, ``""`` where it has not.
    """

    key: str = ""
    layers: tuple[str, ...] = ()
    failed: SetUpRecord | None = None
    whole: str = ""


class PackageLayers:
    """Makes package layers, each by one thread of one process. Safe to use from several of both.

    Args:
        locks: folder for locks.
    """

    def __init__(
        self, locks: Path, runner: Runner, catalogue: Catalogue, settings: BuildSettings, adapt: Adapt
    ) -> None:
        self._locks = locks
        self._runner = runner
        self._catalogue = catalogue
        self._settings = settings
        self._adapt = adapt
        self._downloads = threading.Semaphore(settings.downloads)

    def chain(self, steps: Sequence[PackageStep], base: Base, slot: str) -> Chain:
        """The layers of some steps, made where they are not there."""
        chain = Chain()
        for step in steps:
            before = chain
            for piece in step.parts():
                chain, record = self._layer(chain, piece, step, base, slot)
                if record.failure is None and record.one_layer:  # the parts would bring other packages than the whole
                    chain, record = self._layer(before, step, step, base, slot)
                if record.failure in _INFRASTRUCTURE:
                    return replace(before, failed=record)
                if record.failure is not None:
                    return Chain(whole=f"its packages alone: {record.failure}: {record.reason}")
        return chain

    def _layer(
        self, chain: Chain, piece: PackageStep, whole: PackageStep, base: Base, slot: str
    ) -> tuple[Chain, SetUpRecord]:
        """One layer on top of a chain."""
        adaptation = self._adapt(piece.script, "", base)
        what = [base.digest, base.environment, chain.key, adaptation.script, adaptation.digests]
        key = digest_of([RECIPE_VERSION, NORMAL_VERSION, *what])
        script = Script(adaptation.script, adaptation, base, chain.layers, slot)
        with in_turn(self._locks / f"package-{key[:2]}"):  # whichever process wants it
            record = self._catalogue.record(key)
            if record is None or record.failure is not None or not self._runner.is_whole(record):
                if self._settings.offline:
                    raise offline(f"a layer with {' '.join(piece.names)}")
                with self._downloads:
                    record, log = self._install(key, script, piece, whole)
                self._catalogue.put_record(record, log)
        return Chain(key, (*chain.layers, record.delta) if record.delta else chain.layers), record

    def _install(self, key: str, script: Script, piece: PackageStep, whole: PackageStep) -> tuple[SetUpRecord, str]:
        if piece == whole or piece != whole.parts()[-1]:
            return self._runner.run(key, script)
        # the second part: is it, on the first, what the whole would be?
        text = f"{script.text}{_INSTALLED} > {INSIDE}/installed\n"
        record, log = self._runner.run(key, replace(script, text=text))
        if record.failure is not None:
            return record, log
        simulation = (
            f"apt-get update > /dev/null\n{_INSTALLED} > {INSIDE}/before\n"
            f"apt-get -s -q install -y {' '.join((*whole.flags, *whole.names))} > {INSIDE}/simulated\n"
        )
        outcome = self._runner.attempt(replace(script, text=simulation, below=script.below[:-1]))
        if outcome.failure is not None:
            return replace(record, failure=outcome.failure, reason=outcome.reason), log
        lent = self._runner.lent(script.base, script.slot)
        expected = simulated((lent / "before").read_text(), (lent / "simulated").read_text())
        other = sorted(set((lent / "installed").read_text().split()) ^ expected)
        return replace(record, one_layer=f"other packages: {' '.join(other)[:200]}" if other else ""), log


def simulated(before: str, simulation: str) -> set[str]:
    """``name=version`` of what would be installed after a simulated run of apt."""
    packages = dict(line.split("=", 1) for line in before.split())
    for line in simulation.splitlines():
        words = line.split()
        if words[:1] == ["Inst"]:
            packages[words[1].partition(":")[0]] = next(word for word in words[2:] if word.startswith("("))[1:]
        elif words[:1] == ["Remv"]:
            packages.pop(words[1].partition(":")[0], None)
    return {f"{name}={version}" for name, version in packages.items()}


def offline(what: str) -> InfrastructureError:
    """Something cannot be begun."""
    return InfrastructureError(
        f"{what} would have to be fetched, and this build is offline",
        "Build it where there is a network and bring it as a bundle",
        FailureClass.MIRROR,
    )
