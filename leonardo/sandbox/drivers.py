"""Which driver runs sandboxes on this node: chosen by trying, in order of what it can do and how fast it is."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.sandbox import identities, janitor
from leonardo.sandbox.apptainer import ApptainerDriver
from leonardo.sandbox.apptainerholder import ApptainerHolderDriver
from leonardo.sandbox.fusedriver import FuseDriver
from leonardo.sandbox.identities import NoRangeError
from leonardo.sandbox.namespaces import NamespacesDriver

VARIABLE = "LEONARDO_DRIVER"
"""Environment variable that names the driver where the caller leaves the choice open."""


REMEDY = "Allow user namespaces; where a security module grants them to Apptainer alone, install it: make apptainer"
"""Where no driver serves. Every one of them needs a user namespace, also Apptainer's."""


@dataclass(frozen=True)
class Refusal:
    """A driver that cannot serve here, and why, in one line."""

    driver: str
    reason: str

    def __str__(self) -> str:
        return f"{self.driver}: {self.reason}"


@dataclass(frozen=True)
class Choice:
    """The driver that was opened, those before it that were not, and what the janitor then did."""

    driver: NamespacesDriver
    refusals: tuple[Refusal, ...]
    cleaned: tuple[str, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A driver to try: a label for people, and how to open it."""

    label: str
    open: Callable[[], NamespacesDriver]

    def opened(self) -> NamespacesDriver:
        """The driver, having passed its self-test. :class:`InfrastructureError` says why it cannot serve."""
        try:
            driver = self.open()
        except NoRangeError as error:
            raise InfrastructureError(str(error), failure=FailureClass.KERNEL_FEATURE) from error
        try:
            failed = {check: fault for check, fault in driver.self_test().items() if fault}
            if driver.degraded:
                failed.pop("chown", None)  # known, and said
            if failed:
                faults = ", ".join(f"{check} ({fault})" for check, fault in failed.items())
                raise InfrastructureError(f"the self-test failed: {faults}", failure=FailureClass.KERNEL_FEATURE)
        except BaseException:
            driver.close()
            raise
        return driver


def _one_id() -> NamespacesDriver:
    try:
        identities.full()
        reason = "more were not used"
    except NoRangeError as error:
        reason = str(error)
    return NamespacesDriver(identities.single(reason))


MANY_IDS = Candidate("namespaces", lambda: NamespacesDriver(identities.full()))
ONE_ID = Candidate("namespaces-one-id", _one_id)
APPTAINER_HOLDER = Candidate("apptainer-holder", ApptainerHolderDriver)
FUSE = Candidate("namespaces-fuse", lambda: FuseDriver(identities.full()))
APPTAINER = Candidate("apptainer", ApptainerDriver)

CANDIDATES = (MANY_IDS, APPTAINER_HOLDER, ONE_ID, FUSE, APPTAINER)
"""Every driver, in the order in which they are tried: the fullest and fastest first."""

_ORDERS = {
    "auto": CANDIDATES,
    "namespaces": (MANY_IDS, ONE_ID),
    "apptainer-holder": (APPTAINER_HOLDER,),
    "namespaces-one-id": (ONE_ID,),
    "namespaces-fuse": (FUSE,),
    "apptainer": (APPTAINER,),
}
NAMES = tuple(_ORDERS)


def open_driver(name: str = "auto") -> NamespacesDriver:
    """The driver called ``name``; for ``auto`` the best that works here (or the one that :data:`VARIABLE` names).

    Raises :class:`InfrastructureError`, in one line, when none can serve.
    """
    return choose(name).driver


def choose(name: str = "auto") -> Choice:
    """Like :func:`open_driver`, and says why better drivers were passed over."""
    if name == "auto":
        name = os.environ.get(VARIABLE, "") or "auto"
    if name not in NAMES:
        raise InputError(f"no sandbox driver is called {name!r}", f"Use one of {', '.join(NAMES)}")
    refusals: list[Refusal] = []
    for candidate in _ORDERS[name]:
        try:
            driver = candidate.opened()
        except InfrastructureError as error:
            refusals.append(Refusal(candidate.label, error.what))
            continue
        # after a crash: what it left might be in the way
        return Choice(driver, tuple(refusals), tuple(janitor.clean(driver.discard)))
    raise InfrastructureError(
        f"no sandboxes can be run here ({'; '.join(map(str, refusals))})",
        REMEDY,
        FailureClass.KERNEL_FEATURE,
    )


def clean_up(name: str = "auto") -> list[str]:
    """Clean what killed drivers of this user left on this node, by the driver called ``name``; a line each."""
    choice = choose(name)
    with choice.driver as driver:
        return [*choice.cleaned, *janitor.clean(driver.discard)]


@dataclass(frozen=True)
class Finding:
    """Whether a driver serves here, and what is missing in one line (``""`` if nothing is)."""

    serves: bool
    note: str


def survey() -> dict[str, Finding]:
    """Try every driver; label -> finding."""
    findings = {}
    for candidate in CANDIDATES:
        try:
            with candidate.opened() as driver:
                findings[candidate.label] = Finding(True, driver.degraded)
        except InfrastructureError as error:
            findings[candidate.label] = Finding(False, error.what)
    return findings
