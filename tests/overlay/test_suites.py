"""Comparing test runs: what counts as broken, and a real run of pytest on a tree with and without a patch."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from leonardo.errors import InfrastructureError, InputError
from leonardo.overlay import suites
from leonardo.overlay.suites import compare, read_outcomes, run_suites, write_trees
from leonardo.overlay.tree import Tree
from tests.overlay.conftest import Lab

JUNIT = """<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" tests="6">
  <testcase classname="tests.test_a.TestOne" name="test_good" time="0.1"/>
  <testcase classname="tests.test_a.TestOne" name="test_bad"><failure message="assert 0">...</failure></testcase>
  <testcase classname="tests.test_a" name="test_left_out"><skipped message="no network"/></testcase>
  <testcase classname="tests.test_a" name="test_setup"><error message="failed on setup"/></testcase>
  <testcase classname="tests.test_a" name="test_case[a b]"/>
  <testcase classname="tests.test_a" name="test_teardown"/>
  <testcase classname="tests.test_a" name="test_teardown"><error message="failed on teardown"/></testcase>
</testsuite></testsuites>
"""


def test_outcomes_of_a_junit_file(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(JUNIT)
    assert read_outcomes(tmp_path / "report.xml") == {
        "tests.test_a.TestOne::test_good": "passed",
        "tests.test_a.TestOne::test_bad": "failed",
        "tests.test_a::test_left_out": "skipped",
        "tests.test_a::test_setup": "failed",
        "tests.test_a::test_case[a b]": "passed",
        "tests.test_a::test_teardown": "failed",
    }


def test_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(JUNIT[:200])
    with pytest.raises(InputError, match="no JUnit file"):
        read_outcomes(tmp_path / "report.xml")


@pytest.mark.parametrize("after", ["failed", "skipped", None])
def test_passing_test_that_does_not_pass_any_more_is_broken(after: str | None) -> None:
    patched = {"b": "passed"} | ({"a": after} if after else {})
    result = compare({"a": "passed", "b": "passed"}, patched)
    assert result.broken == ("a",)
    assert not result.ok


def test_failures_on_both_sides_and_new_tests_break_nothing() -> None:
    without = {"bad": "failed", "worse": "failed", "good": "passed"}
    result = compare(without, {"bad": "failed", "worse": "passed", "good": "passed", "new": "passed"})
    assert result.ok
    assert result.repaired == ("worse",)
    assert (result.passed, result.failed, result.skipped, result.before) == (3, 1, 0, 1)


def test_nothing_that_passed_proves_nothing() -> None:
    assert not compare({"a": "failed"}, {"a": "failed"}).ok
    assert not compare({}, {}).ok


def test_real_runs_on_both_trees(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lab's second patch inserts into a file whose last line a test of the tree looks at."""
    monkeypatch.setattr(suites, "TRAINER", "engine")
    without, patched = write_trees(Tree(lab.upstream), lab.stack, tmp_path / "trees")
    assert (without / "run.py").read_text() != (patched / "run.py").read_text()
    count = len((without / "run.py").read_text().splitlines())
    check = (
        "from pathlib import Path\n"
        "def test_lines():\n"
        f"    assert len(Path('run.py').read_text().splitlines()) == {count}\n"
        "def test_other():\n"
        "    assert Path('parts.py').exists()\n"
    )
    outcomes = []
    for place in (without, patched):
        (place / "test_it.py").write_text(check)
        outcomes.append(run_suites(Path(sys.executable), place, tmp_path / f"{place.parent.name}.xml", ["test_it.py"]))
    result = compare(*outcomes)
    assert result.broken == ("test_it::test_lines",)
    assert (result.passed, result.failed) == (1, 1)


def test_suite_that_never_ends_leaves_no_process(tmp_path: Path) -> None:
    mark = f"sleep 98{tmp_path.stat().st_ino}"
    (tmp_path / "test_it.py").write_text(
        f"import subprocess, time\ndef test_it():\n    subprocess.Popen({mark.split()!r})\n    time.sleep(600)\n"
    )
    with pytest.raises(InfrastructureError, match="no result"):
        run_suites(Path(sys.executable), tmp_path, tmp_path / "report.xml", ["test_it.py"], limit=3)
    deadline = time.monotonic() + 10  # a killed process is listed until the kernel is done with it
    while mark in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.1)
