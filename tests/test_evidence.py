from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from leonardo.errors import InputError
from leonardo.evidence import FIRST, Evidence, append, read, verify


def test_entries_come_back_in_order_and_are_chained(tmp_path: Path) -> None:
    ledger = tmp_path / "runs" / "ledger.jsonl"
    first = append(ledger, Evidence("gates", "pass", {"rows": 12}, {"manifest": "abc"}))
    second = append(ledger, Evidence("demo", "fail"))
    assert read(ledger) == [first, second]
    assert first.previous == FIRST
    assert len(second.previous) == 64
    assert second.previous != FIRST
    assert first.time.endswith("+00:00")
    assert verify(ledger) == 2


def test_a_changed_line_shows(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    for name in ("a", "b", "c"):
        append(ledger, Evidence(name, "fail"))
    ledger.write_text(ledger.read_text().replace('"fail"', '"pass"', 1))
    with pytest.raises(InputError, match="line 2 does not follow"):
        verify(ledger)


def test_a_removed_line_shows(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    for name in ("a", "b", "c"):
        append(ledger, Evidence(name, "pass"))
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text(lines[0] + lines[2])
    with pytest.raises(InputError, match="line 2"):
        verify(ledger)


def test_a_line_cut_short_is_not_built_upon(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    append(ledger, Evidence("a", "pass"))
    ledger.write_text(ledger.read_text() + '{"name": "b"')
    with pytest.raises(InputError, match="ends within a line"):
        append(ledger, Evidence("c", "pass"))


def test_threads_do_not_break_the_chain(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    with ThreadPoolExecutor(4) as pool:
        list(
            pool.map(lambda number: append(ledger, Evidence(f"gate-{number}", "pass", {"pad": "x" * 5000})), range(16))
        )
    assert verify(ledger) == 16


def test_no_ledger_is_an_empty_one(tmp_path: Path) -> None:
    assert read(tmp_path / "none.jsonl") == []
    assert verify(tmp_path / "none.jsonl") == 0
