"""An edit shows, with the number of its entry."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leonardo.errors import InputError
from leonardo.evidence import Evidence, RecordFile, append, check, read, record_files, require_whole
from leonardo.evidence.commands import evidence_app
from leonardo.evidence.explain import explain
from leonardo.evidence.ledger import head_path
from leonardo.files import write_atomic

PROJECT = Path(__file__).parents[2]
OLD = sorted((PROJECT / "docs/evidence").glob("*/ledger.jsonl"))


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    for name in ("gates", "smoke", "calibrate"):
        record = tmp_path / name / "steps.jsonl"
        write_atomic(record, f"records of {name}\n")
        entry = Evidence(name=name, verdict="pass", figures={"n": 1.5}, records=record_files(tmp_path, [record]))
        append(path, entry)
    return path


def test_every_flip_of_a_byte_is_found_in_its_entry(ledger: Path) -> None:
    whole = ledger.read_bytes()
    for position in range(len(whole)):
        entry = whole[:position].count(b"\n") + 1
        edited = bytearray(whole)
        edited[position] ^= (0x01, 0x20, 0x08)[position % 3]
        ledger.write_bytes(edited)
        faults = check(ledger, records=False).faults
        assert faults, position
        assert faults[0].entry == entry, (position, faults)
    ledger.write_bytes(whole)
    assert check(ledger).ok


def test_every_flip_of_a_byte_of_a_record_is_found(ledger: Path) -> None:
    record = ledger.parent / "smoke/steps.jsonl"
    whole = record.read_bytes()
    for position in range(len(whole)):
        edited = bytearray(whole)
        edited[position] ^= 1
        record.write_bytes(edited)
        assert [(fault.entry, fault.what) for fault in check(ledger).faults] == [
            (2, "its record smoke/steps.jsonl was changed")
        ]
    record.unlink()
    found = check(ledger)
    assert found.ok
    assert "smoke/steps.jsonl" in found.notes[0]


def test_removed_moved_and_rewritten_entries_show(ledger: Path) -> None:
    lines = ledger.read_bytes().splitlines(keepends=True)
    for edited, entry in (
        (lines[1:], 1),
        ([lines[0], lines[2]], 2),
        (lines[:2], 3),
        ([lines[1], lines[0], lines[2]], 1),
        ([lines[0], lines[0], lines[1], lines[2]], 2),
    ):
        ledger.write_bytes(b"".join(edited))
        assert check(ledger).faults[0].entry == entry
        with pytest.raises(InputError, match="entry"):
            require_whole(ledger)
    # even one that was sealed anew
    first = read_one(lines[0]).model_copy(update={"verdict": "fail"}).sealed()
    ledger.write_bytes(first.line() + b"\n" + b"".join(lines[1:]))
    assert check(ledger).faults[0].entry == 2


def test_a_head_that_is_gone_is_said_and_an_edited_one_found(ledger: Path) -> None:
    head = head_path(ledger)
    whole = head.read_text()
    head.unlink()
    found = check(ledger)
    assert found.ok
    assert "a removed last entry would not show" in found.notes[0]
    head.write_text(whole.replace('"last": "', '"last": "0'))
    assert not check(ledger).ok
    head.write_text("{")
    assert not check(ledger).ok


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.parent.name)
def test_ledgers_of_before_are_readable_and_go_on(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "ledger.jsonl"
    copy.write_bytes(path.read_bytes())
    assert {entry.verdict for entry in read(copy)} == {"pass"}
    assert check(copy).ok
    append(copy, Evidence(name="pilot", verdict="fail"))
    assert check(copy).ok
    copy.write_bytes(copy.read_bytes().replace(b'"verdict": ', b'"verdict":  ', 1))
    assert [fault.entry for fault in check(copy).faults] == [1]


def test_an_entry_in_words(ledger: Path) -> None:
    calibrate = read(ledger)[2]
    append(
        ledger,
        Evidence(
            name="pilot", verdict="fail", kind="stage", site="desk", says="pilot fails: none shown.",
            criteria=({"figure": "direction", "value": None, "threshold": "is positive", "ok": False},),
            pins={"packages": {"torch": "2.13.0"}}, builds_on=calibrate.digest, forced="trying",
            stains=("calibrate was forced: trying",),
        ),
    )  # fmt: skip
    text = "\n".join(explain(read(ledger), 4))
    for words in (
        "the stage pilot on the site desk", "FAIL", "STAINED: calibrate was forced", "NOT MET direction: not measured",
        "packages.torch 2.13.0", "builds on entry 3, calibrate, pass", "forced: trying", "no records",
    ):  # fmt: skip
        assert words in text


def read_one(line: bytes) -> Evidence:
    return Evidence.model_validate_json(line)


@pytest.mark.parametrize("name", ["r" * 5000, "a/" * 2500 + "steps.jsonl", "steps\0.jsonl"])
def test_a_record_whose_path_no_system_has_is_a_line(tmp_path: Path, name: str) -> None:
    ledger = tmp_path / "ledger.jsonl"
    append(ledger, Evidence(name="smoke", verdict="pass", records=(RecordFile(path=name, sha256="0" * 64),)))
    found = check(ledger)
    assert found.ok and found.records == 0
    (note,) = found.notes
    assert "not rehashed" in note and len(note) < 300


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(ledger: Path) -> None:
    record = ledger.parent / "smoke/steps.jsonl"
    record.unlink()
    os.mkfifo(record)
    found = check(ledger)
    assert (found.ok, found.records, found.missing) == (True, 2, 1) and "smoke/steps.jsonl" in found.notes[0]


def test_the_command_tells_edits_first_then_what_is_gone_and_the_sum(ledger: Path) -> None:
    (ledger.parent / "gates/steps.jsonl").unlink()
    (ledger.parent / "smoke/steps.jsonl").unlink()
    (ledger.parent / "calibrate/steps.jsonl").write_text("edited\n")
    done = CliRunner().invoke(evidence_app, ["verify", "--ledger", str(ledger)])
    lines = done.stdout.splitlines()
    assert (done.exit_code, len(lines)) == (1, 4)
    assert lines[0] == "EDITED: entry 3: its record calibrate/steps.jsonl was changed"
    assert [line.rpartition(" ")[2] for line in lines[1:3]] == ["gates/steps.jsonl", "smoke/steps.jsonl"]
    assert lines[3].startswith(f"NOT OK: {ledger}: 3 entries, 1 records rehashed, 2 not there, head ")
    shown = CliRunner().invoke(evidence_app, ["show", "--ledger", str(ledger)])
    assert [line.split()[2:] for line in shown.stdout.splitlines()] == [
        ["pass", "gates"], ["pass", "smoke"], ["pass", "calibrate"],
    ]  # fmt: skip
