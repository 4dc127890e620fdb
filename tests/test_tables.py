"""No table loses what it shows, however narrow the place; and all tables are of that kind."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

import leonardo
from leonardo import tables
from leonardo.stages.families import FamilyCheck, _show
from leonardo.tables import Table, open_console

WORDS = ("a" * 30, "live_parallel_multiple-and-more", "sixty-nine words of a reason that somebody wrote down")


@pytest.mark.parametrize("width", [20, 80, 160])
def test_what_does_not_fit_is_folded(width: int) -> None:
    table = Table("a-long-header-of-one-word", "b")
    table.add_column("third", justify="right")
    table.add_row(*WORDS)
    shown = io.StringIO()
    Console(file=shown, width=width).print(table)
    lines = shown.getvalue().splitlines()
    assert all(len(line) <= width for line in lines) and "…" not in shown.getvalue()
    columns = [[part.strip() for part in line.split("│")[1:-1]] for line in lines if line.startswith("│")]
    said = ["".join(parts).replace(" ", "") for parts in zip(*columns, strict=True)]
    assert said == [word.replace(" ", "") for word in WORDS]


def test_families_fit_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    _show([FamilyCheck("qwen3.5", "/a/folder", 1116, 884, 2358, 60)], Console(file=shown, width=80))
    assert re.search(r"qwen3\.5 +│ 1116 +│ 884 +│ 2358 +│ 60 ", shown.getvalue())
    assert "qwen3.5: with the tokenizer in /a/folder" in shown.getvalue()


def test_a_pipe_is_wide_and_a_person_may_say_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert open_console().width == 160
    monkeypatch.setenv("COLUMNS", "100")
    assert open_console().width == 100


def test_every_command_uses_these() -> None:
    own = re.compile(r"(?<![\w.])Console\(\)|rich\.table|no_wrap")
    strange = [
        path.name
        for path in Path(leonardo.__file__).parent.rglob("*.py")
        if path != Path(tables.__file__) and own.search(path.read_text())
    ]
    assert not strange
