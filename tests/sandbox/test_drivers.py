"""The choice of a driver."""

import os
import stat
from pathlib import Path

import pytest

from leonardo.errors import InfrastructureError, InputError
from leonardo.sandbox import apptainer, drivers
from leonardo.sandbox.drivers import Candidate
from leonardo.sandbox.identities import NoRangeError


class _Driver:
    """Just enough of a driver to be chosen or not."""

    def __init__(self, faults: dict[str, str], degraded: str = "") -> None:
        self.faults, self.degraded, self.closed = faults, degraded, False

    def self_test(self) -> dict[str, str]:
        return self.faults

    def close(self) -> None:
        self.closed = True


def _refuse(error: Exception):
    def refuse() -> None:
        raise error

    return refuse


def test_the_first_that_works_is_taken_and_the_others_say_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, good = _Driver({"opaque": "Input/output error", "proc": ""}), _Driver({"chown": "no"}, degraded="one id")
    order = (
        Candidate("first", _refuse(NoRangeError("no line in /etc/subuid"))),
        Candidate("second", _refuse(InfrastructureError("no clone"))),
        Candidate("third", lambda: broken),
        Candidate("fourth", lambda: good),
    )
    monkeypatch.setattr(drivers, "_ORDERS", {"auto": order})
    monkeypatch.delenv(drivers.VARIABLE, raising=False)
    choice = drivers.choose()
    assert choice.driver is good
    assert broken.closed
    assert not good.closed
    assert [str(refusal) for refusal in choice.refusals] == [
        "first: no line in /etc/subuid",
        "second: no clone",
        "third: the self-test failed: opaque (Input/output error)",
    ]
    monkeypatch.setattr(drivers, "_ORDERS", {"auto": order[:2]})
    with pytest.raises(InfrastructureError, match=r"first: no line in /etc/subuid; second: no clone"):
        drivers.open_driver()


def test_the_environment_names_a_driver_where_the_caller_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(drivers.VARIABLE, "magic")
    with pytest.raises(InputError, match="'magic'"):
        drivers.open_driver()
    with pytest.raises(InputError, match="'other'"):
        drivers.open_driver("other")


def test_a_missing_or_broken_apptainer_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(apptainer, "PREFIX", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(InfrastructureError, match="make apptainer"):
        apptainer.ApptainerDriver()
    program = tmp_path / "apptainer"
    program.write_text("#!/bin/sh\necho 'FATAL:   it is broken' >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert apptainer.find() == program
    with apptainer.ApptainerDriver() as driver:
        with pytest.raises(InfrastructureError, match="it is broken"):
            driver.version()
        with pytest.raises(InfrastructureError, match="it is broken"):
            driver.self_test()


def test_the_project_s_own_apptainer_is_preferred(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    own = tmp_path / "bin" / "apptainer"
    own.touch()
    own.chmod(0o755)
    monkeypatch.setattr(apptainer, "PREFIX", tmp_path)
    assert apptainer.find() == own
    assert os.access(own, os.X_OK)


def test_a_survey_names_every_driver() -> None:
    assert list(drivers.survey()) == ["namespaces", "apptainer", "namespaces with one id"]
