import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from leonardo.assets.archives import Archives
from leonardo.assets.catalogue import Catalogue
from leonardo.assets.manifest import ManifestEntry, read_manifest
from leonardo.assets.progress import BuildProgress
from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InputError
from leonardo.gates.diagnosis import Case, Diagnosis, Journal, Ladder, read_records, rung_of
from leonardo.sandbox.driver import Driver
from leonardo.site import Site
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files

ROOT = Path(__file__).parents[2]
RECORD = Diagnosis("k", "t", "kind", True, False, FailureClass.SET_UP, "why", "s", ("rule@1",), True, 1.5)


# --- the journal ------------------------------------------------------------------------------------------------------


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    with Journal(tmp_path / "runs" / "records.jsonl") as journal:
        journal.add(RECORD)
        assert journal.read() == {"k": RECORD}
    with Journal(tmp_path / "runs" / "records.jsonl") as journal:
        assert journal.read() == {"k": RECORD}


def test_a_line_cut_short_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    with Journal(path) as journal:
        journal.add(RECORD)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    with Journal(path) as journal:
        assert list(journal.read()) == ["k"]
    assert path.read_bytes() == whole


def test_a_journal_is_one_process_s(tmp_path: Path) -> None:
    with Journal(tmp_path / "x"), pytest.raises(InputError, match="Another diagnosis writes to"):
        Journal(tmp_path / "x")
    Journal(tmp_path / "x").__exit__()


def test_a_journal_that_was_edited_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"no": "record"}\n')
    with pytest.raises(InputError, match="line 1 is no record"):
        read_records(tmp_path / "x")


# --- the ladder -------------------------------------------------------------------------------------------------------


class Counting(BuildProgress):
    """How much was done."""

    def __init__(self) -> None:
        self.steps = 0

    def done(self, entry: ManifestEntry) -> None:
        self.steps += 1

    def advance(self) -> None:
        self.steps += 1


@pytest.fixture
def ladder(store: AssetStore, driver: Driver, tmp_path: Path) -> Callable[..., Ladder]:
    def make(**arguments: object) -> Ladder:
        path = tmp_path / "runs" / "records.jsonl"
        journal = arguments.pop("journal", None) or Journal(path)
        return Ladder(store, driver, journal, arguments.pop("pins", {}), jobs=1, **arguments)

    return make


@pytest.fixture
def make_case(make_task: Callable[..., Task]) -> Callable[..., Case]:
    """A task that passes after ``touch /done``."""

    def make(name: str, post: str = "true", **fields: object) -> Case:
        attempt = fields.pop("attempt", ())
        defaults = {"reference_solution": "touch /done\n", "instruction": "Make /done."}
        return Case(make_task(post, name, **(defaults | fields)), attempt)

    return make


def test_rows_in_rungs_and_none_twice(ladder: Callable[..., Ladder], make_case: Callable[..., Case]) -> None:
    cases = [make_case("a"), make_case("b", "exit 3"), make_case("c", attempt=["true"])]
    progress = Counting()
    first = ladder(progress=progress)
    rungs = [rung for rung, _ in first.climb(cases, rungs=(1, 2))]
    assert [(rung.rows, rung.built, rung.passed) for rung in rungs] == [(1, 1, 1), (2, 1, 1), (3, 2, 1)]
    assert rungs[-1].classified == {"agent": 1, "set-up": 1}
    assert progress.steps == 2 + 1 + 2  # built and judged, failed, built and judged
    ((_, records),) = first.climb(cases, rungs=())
    assert progress.steps == 5  # nothing was left to do
    assert [record.task_id for record in records] == ["a", "b", "c"]
    assert records[1].reason == "exit code 3: no output"
    assert records[2].reason == "the episode ended with reward 0 (failed)"


def test_other_pins_are_another_diagnosis(
    ladder: Callable[..., Ladder], make_case: Callable[..., Case], tmp_path: Path
) -> None:
    case = make_case("a")
    with Journal(tmp_path / "records") as journal:
        keys = {
            ladder(journal=journal, pins=pins, with_rules=rules).key(case)
            for pins, rules in (({}, True), ({"driver": "x"}, True), ({}, False))
        }
    assert len(keys) == 3


def test_a_machine_at_fault_ends_the_ladder(ladder: Callable[..., Ladder], make_case: Callable[..., Case]) -> None:
    full = "cat /etc/passwd > /dev/full"
    cases = [make_case("a", full), make_case("b", f"{full} # b"), make_case("c")]
    (rung,) = [rung for rung, _ in ladder().climb(cases, rungs=(2,))]
    assert rung.infrastructure == rung.rows == 2


def test_a_fault_of_ours_costs_one_row_and_has_no_class(
    ladder: Callable[..., Ladder], make_case: Callable[..., Case]
) -> None:
    def break_down(entry: ManifestEntry) -> None:
        raise KeyError(entry.task_id)

    broken = make_case("a")
    cases = [Case(broken.task, before_check=break_down), make_case("b")]
    ((rung, records),) = ladder().climb(cases)
    assert (rung.passed, rung.unclassified) == (1, 1)
    assert records[0].reason == "KeyError: 'a'"


def test_what_the_text_says_goes_before_what_a_run_met(
    ladder: Callable[..., Ladder], make_case: Callable[..., Case]
) -> None:
    """The reference fails for want of a network in both; only one of the tasks asks for it."""
    solution = "exec 3<>/dev/tcp/files.example.com/80\n"
    tests = verifier_files("#!/bin/bash\n[ -e /data.csv ]\n")
    silent = make_case("silent", reference_solution=solution, tests=tests)
    told = "Download https://files.example.com/data.csv to /data.csv."
    asked = make_case("asked", reference_solution=solution, tests=tests, instruction=told)
    ((_, records),) = ladder().climb([silent, asked])
    assert [record.failure for record in records] == [FailureClass.NETWORK, FailureClass.NEEDS_NETWORK]


def test_an_empty_rung() -> None:
    assert rung_of([], 0).rows == 0


# --- the whole command, killed ----------------------------------------------------------------------------------------


def run_until_killed(command: list[str], seconds: float | None) -> int | None:
    """Run a command, killed with SIGKILL after some seconds. Its exit code, ``None`` where it was killed."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, complaints = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        return None
    assert not complaints, complaints
    return process.returncode


def whole_lines(path: Path) -> list[str]:
    return path.read_text().split("\n")[:-1] if path.exists() else []


def finished(store: Path, lines: list[str]) -> dict[str, int]:
    """How often those set-ups were run that must not be again: they went well, or their row has its record."""
    judged = {json.loads(line)["set_up"] for line in lines}
    catalogue = Catalogue(store / "catalogue")
    done = [record.key for record in catalogue.records() if record.failure is None or record.key in judged]
    counts = {key: catalogue.builds(key) for key in done}
    catalogue.close()
    return counts


@pytest.mark.parametrize(
    ("kills", "count"), [pytest.param(3, 30, id="3 kills"), pytest.param(20, 60, id="20 kills", marks=pytest.mark.slow)]
)
def test_a_diagnosis_that_is_killed_goes_on(tmp_path: Path, site: Site, kills: int, count: int) -> None:
    """With SIGKILL at random times: no record is lost or made twice, nothing is built again, nothing is corrupt."""
    page = (tmp_path / "site.yaml").read_text().replace("tiny:1", "ubuntu:22.04")
    (tmp_path / "site.yaml").write_text(page)
    command = [sys.executable, "-m", "leonardo.cli", "diagnose", "--count", str(count), "--no-packages"]
    command += ["--site", str(tmp_path / "site.yaml"), "--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")]
    records, store = tmp_path / "runs" / "diagnose" / "records.jsonl", site.cache / "assets"
    times = random.Random(kills)
    killed = 0
    while killed < kills:
        lines, before = whole_lines(records), finished(store, whole_lines(records))
        if run_until_killed(command, times.uniform(0.5, 6)) is not None:
            break
        killed += 1
        assert whole_lines(records)[: len(lines)] == lines
        after = finished(store, whole_lines(records))
        again = {key: after.get(key) for key in before if after.get(key) != before[key]}
        assert again.keys() <= planted_damage(store)
    assert run_until_killed(command, None) == 0
    verdict = json.loads((tmp_path / "out" / "diagnose.json").read_text())
    figures = verdict["figures"]
    assert (figures["rows"], figures["unclassified"]) == (count, 0)
    assert (figures["planted"], figures["planted_right"], figures["false_alarms"]) == (20, 20, 0)
    keys = [json.loads(line)["key"] for line in whole_lines(records)]
    assert len(keys) == len(set(keys)) == count
    catalogue = Catalogue(store / "catalogue")
    archives = Archives(store / "layers", catalogue, store / "making")
    for record in catalogue.records():
        if record.failure is None and record.key not in planted_damage(store):
            assert catalogue.builds(record.key) == 1
            assert archives.is_whole(record.delta)
    catalogue.close()
    built = {json.loads(line)["task_id"] for line in whole_lines(records) if json.loads(line)["built"]}
    assert built <= {entry["task_id"] for entry in read_manifest(store / "manifest.json").values()}
    print(f"killed {killed} times")


def planted_damage(store: Path) -> set[str]:
    """The set-up whose layer the corpus damages: that one is built again."""
    entries = read_manifest(store / "manifest.json").values()
    return {entry["set_up"]["key"] for entry in entries if entry["task_id"].startswith("planted-runtime")}
