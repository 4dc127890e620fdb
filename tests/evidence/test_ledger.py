"""Concurrent writers, interruptions and a full disk lose no entry."""

import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from leonardo.errors import InputError
from leonardo.evidence import Evidence, append, check, read
from leonardo.evidence.entry import FIRST
from leonardo.evidence.ledger import head_path

WRITER = """
import sys
from pathlib import Path
from leonardo.evidence import Evidence, append
for number in range(int(sys.argv[3])):
    append(Path(sys.argv[1]), Evidence(name=f"{sys.argv[2]}-{number}", verdict="pass", figures={"pad": "x" * 3000}))
    print(f"{sys.argv[2]}-{number}", flush=True)
"""


def entry(name: str, **fields: object) -> Evidence:
    return Evidence(name=name, verdict="pass", **fields)


def start_writer(ledger: Path, name: str, count: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(ledger), name, str(count)], stdout=subprocess.PIPE, text=True
    )


def test_entries_come_back_in_order_and_are_chained(tmp_path: Path) -> None:
    ledger = tmp_path / "runs" / "ledger.jsonl"
    first = append(ledger, entry("gates", figures={"rows": 12}, pins={"manifest": "abc"}))
    second = append(ledger, Evidence(name="demo", verdict="fail"))
    assert read(ledger) == [first, second]
    assert (first.previous, len(second.previous), first.time[-6:]) == (FIRST, 64, "+00:00")
    assert second.previous != FIRST
    found = check(ledger)
    assert (found.entries, found.ok, found.notes) == (2, True, [])


def test_no_ledger_is_an_empty_one(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl") == []
    assert check(tmp_path / "none.jsonl").entries == 0


def test_writers_in_many_processes_lose_no_entry(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    writers = [start_writer(ledger, f"writer{number}", 12) for number in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    assert check(ledger).ok
    assert {each.name for each in read(ledger)} == {f"writer{n}-{m}" for n in range(4) for m in range(12)}


def test_a_writer_that_is_killed_at_any_time_loses_no_entry(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    chance = random.Random(7)
    said: list[str] = []
    for number in range(8):
        writer = start_writer(ledger, f"writer{number}", 100_000)
        assert writer.stdout is not None
        said.append(writer.stdout.readline().strip())  # it has begun
        time.sleep(chance.uniform(0, 0.05))
        writer.send_signal(signal.SIGKILL)
        said += writer.stdout.read().split()
        writer.wait()
    append(ledger, entry("last"))
    found = check(ledger)
    assert (found.faults, found.notes) == ([], [])
    names = [each.name for each in read(ledger)]
    assert set(said) <= {*names}  # whatever a writer was told is written is there
    assert len(names) == len({*names})


def test_a_line_that_was_cut_at_any_byte_is_mended(tmp_path: Path) -> None:
    """The state that a kill leaves between the line's first byte and the head."""
    ledger = tmp_path / "ledger.jsonl"
    append(ledger, entry("a"))
    head, before = head_path(ledger).read_bytes(), ledger.read_bytes()
    append(ledger, entry("b"))
    after = ledger.read_bytes()
    for length in range(len(before), len(after) + 1):
        ledger.write_bytes(after[:length])
        head_path(ledger).write_bytes(head)
        assert check(ledger).ok
        said: list[str] = []
        append(ledger, entry("c"), said.append)
        kept = ["b"] if length >= len(after) - 1 else []
        assert [each.name for each in read(ledger)] == ["a", *kept, "c"]
        assert bool(said) == (len(before) < length < len(after))
        assert check(ledger).ok


def test_a_full_disk_leaves_the_ledger_as_it_was(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: writing fails in the same place."""
    ledger = tmp_path / "ledger.jsonl"
    append(ledger, entry("a"))
    whole = ledger.read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 100, before[1]))
    try:
        with pytest.raises(OSError):
            append(ledger, entry("b"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert ledger.read_bytes() == whole
    append(ledger, entry("c"))
    assert [each.name for each in read(ledger)] == ["a", "c"]
    assert check(ledger).ok


@pytest.mark.skipif(os.getuid() != 0, reason="a file system of its own needs root")
def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        ledger = place / "ledger.jsonl"
        names = []
        with pytest.raises(OSError, match="No space"):
            for number in range(100):
                append(ledger, entry(f"n{number}", figures={"pad": "x" * 700}))
                names.append(f"n{number}")
        assert names
        assert [each.name for each in read(ledger)] == names
        assert check(ledger).ok
    finally:
        subprocess.run(["umount", place], check=True)


def test_an_edited_end_is_not_taken_for_an_interruption(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    for name in ("a", "b"):
        append(ledger, entry(name))
    whole = ledger.read_bytes()
    for edited in (whole[:-1], whole[:-40], whole[: whole.index(b"\n") + 1]):
        ledger.write_bytes(edited)
        assert [fault.entry for fault in check(ledger).faults] == [2]
        with pytest.raises(InputError, match="entry 2 was edited or removed"):
            append(ledger, entry("c"))
        assert ledger.read_bytes() == edited


def test_brackets_in_an_entry_are_no_markup(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from leonardo.evidence.commands import evidence_app

    append(tmp_path / "ledger.jsonl", Evidence(name="gates", verdict="fail", says="[/x]"))
    shown = CliRunner().invoke(evidence_app, ["show", "--ledger", str(tmp_path)])
    assert shown.exit_code == 0 and "[/x]" in shown.output


def test_a_line_that_is_nested_too_deeply_is_an_edit(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"[" * 100_000 + b"\n")
    assert "nested too deeply" in str(check(path).faults[0])
