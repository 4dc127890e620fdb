"""Which driver runs sandboxes on this node: chosen by trying, in order of what it can do and how fast it is."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.sandbox import identities
from leonardo.sandbox.driver import Driver
from leonardo.sandbox.identities import NoRangeError
from leonardo.sandbox.namespaces import NamespacesDriver

VARIABLE = "LEONARDO_DRIVER"
"""Environment variable that names the driver where the caller leaves the choice open."""

NAMES = ("auto", "namespaces")


@dataclass(frozen=True)
class Refusal:
    """A driver that cannot serve here, and why, in one line."""

    driver: str
    reason: str

    def __str__(self) -> str:
        return f"{self.driver}: {self.reason}"


@dataclass(frozen=True)
class Choice:
    """The driver that was opened, and those before it that were not."""

    driver: Driver
    refusals: tuple[Refusal, ...]


def open_driver(name: str = "auto") -> Driver:
    """The driver called ``name``; for ``auto`` the best that works here (or the one that :data:`VARIABLE` names).

    Raises :class:`InfrastructureError`, in one line, when none can serve.
    """
    return choose(name).driver


def choose(name: str = "auto") -> Choice:
    """Like :func:`open_driver`, and says why better drivers were passed over."""
    if name == "auto":
        name = os.environ.get(VARIABLE, "") or "auto"
    if name not in NAMES:
        raise InputError(f"no sandbox driver is called {name!r}", f"one of {', '.join(NAMES)}")
    refusals: list[Refusal] = []
    for candidate, opener in _candidates(name):
        try:
            return Choice(_tested(opener()), tuple(refusals))
        except (InfrastructureError, NoRangeError) as error:
            refusals.append(Refusal(candidate, str(error).removeprefix("no sandboxes here: ")))
    raise InfrastructureError(
        f"no sandboxes can be run here ({'; '.join(map(str, refusals))})",
        "allow user namespaces or install Apptainer (make apptainer)",
        FailureClass.KERNEL_FEATURE,
    )


def _candidates(name: str) -> list[tuple[str, Callable[[], Driver]]]:
    reasons: list[str] = []

    def many() -> Driver:
        try:
            return _tested(NamespacesDriver(identities.full()))
        except (InfrastructureError, NoRangeError) as error:
            reasons.append(str(error))
            raise

    def one() -> Driver:
        return NamespacesDriver(identities.single(reasons[-1] if reasons else "asked for"))

    entries = [("namespaces", many), ("namespaces, one id", one)]
    return [entry for entry in entries if name == "auto" or entry[0].startswith(name)]


def _tested(driver: Driver) -> Driver:
    """``driver`` if its self-test passes; closed otherwise."""
    try:
        failed = {check: fault for check, fault in driver.self_test().items() if fault}
        if driver.degraded:
            failed.pop("chown", None)  # known, and said
        if failed:
            raise InfrastructureError(
                "the self-test failed: " + ", ".join(f"{check} ({fault})" for check, fault in failed.items())
            )
    except BaseException:
        driver.close()
        raise
    return driver
