"""The pages of the ladder and of two runs: the first screen says what was proven, with which pins, and what was not."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from leonardo.cli import app
from leonardo.evaluation import RunFacts
from leonardo.evidence import Evidence, append, check, read
from leonardo.report.ladder import render_ladder
from leonardo.report.page import render_report
from leonardo.report.runs import put_together, render_two
from leonardo.stages.climb import Rung

STAIN = "smoke was forced although gates failed: in a hurry"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    append(path, Evidence(name="gates", kind="gate", verdict="pass", site="desk", pins={"driver": "namespaces"}))
    criteria = ({"figure": "updates", "value": 4, "threshold": "at least 4", "ok": True},)
    append(
        path,
        Evidence(
            name="smoke", kind="stage", verdict="pass", says="smoke passes: <b>plumbing</b> evidence only.",
            pins={"engine": "desk", "recipe": {"learning_rate": 0.002}}, criteria=criteria, stains=(STAIN,),
        ),
    )  # fmt: skip
    return path


def page_of(ledger: Path, *rungs: Rung) -> str:
    page = render_ladder(rungs, read(ledger), check(ledger), ledger.with_name("ladder.html"))
    return page.read_text().replace("<wbr>", "")


def test_the_ladder_s_first_screen(ledger: Path) -> None:
    gates, smoke = read(ledger)
    text = page_of(
        ledger,
        Rung("gates", "", "passed", "12 of 12 tasks", gates, 1),
        Rung("smoke", "", "passed", smoke.says, smoke, 2),
        Rung("calibrate", "there is a signal", "open", "smoke passed with these pins (entry 2)"),
        Rung("pilot", "", "shut", "calibrate has not been run here"),
    )
    first, _, rest = text.partition('id="criteria"')
    for words in (
        "Passed up to smoke",
        STAIN,
        "12 of 12 tasks",
        "recipe.learning_rate",
        "calibrate has not been run",
        "Anything about the cluster",
    ):
        assert words in first
    assert "&lt;b&gt;plumbing" in first
    assert "2 entries, 0 records rehashed: nothing was edited" in rest
    assert "at least 4" in rest


def test_an_empty_ladder_and_an_edited_one(ledger: Path) -> None:
    assert "Nothing has passed yet" in page_of(ledger, Rung("gates", "", "open", "it needs no evidence before it"))
    whole = ledger.read_text()
    ledger.write_text(whole.replace('"desk"', '"lab"', 1))
    text = render_ladder([], [], check(ledger), ledger.with_name("ladder.html")).read_text()
    assert "entry 1: it was edited" in text
    result = CliRunner().invoke(app, ["report", "--runs", str(ledger.parent), "--out", str(ledger.parent / "out")])
    assert result.exit_code == 1
    assert "NOT OK: the ledger was edited: entry 1: it was edited" in result.output
    assert "entry 1: it was edited" in (ledger.parent / "out/ladder.html").read_text()


def test_two_runs_beside_each_other(full_run: Path, synthetic, tmp_path: Path) -> None:
    other = synthetic.write_full(
        tmp_path / "other", pins={"seed": 7, "packages": {"torch": "2.13.0"}}, says="calibrate passes.", stains=[STAIN]
    )
    two = put_together(full_run, other)
    assert two.between is not None
    assert two.between.difference.value == 0
    assert two.different["packages.torch"] == (None, "2.13.0")
    text = render_two(full_run, other, tmp_path / "runs.html").read_text()
    for words in ("packages.torch", "calibrate passes.", STAIN, "In what they differ"):
        assert words in text


def test_runs_that_do_not_compare_say_why(full_run: Path, synthetic, tmp_path: Path) -> None:
    bare = synthetic.write(tmp_path / "bare", synthetic.steps(3))
    assert "no evaluation of its trained policy" in render_two(full_run, bare, tmp_path / "runs.html").read_text()


def test_a_run_s_page_shows_its_stage_and_its_stains(synthetic, tmp_path: Path) -> None:
    criteria = [{"figure": "direction", "value": None, "threshold": "is positive", "ok": False}]
    facts = RunFacts(stage="pilot", says="pilot fails: direction was not measured.", criteria=criteria, stains=[STAIN])
    folder = synthetic.write(tmp_path / "run", synthetic.steps(3), facts=facts)
    text = render_report(folder, "A pilot").read_text()
    first = text[: text.index('id="figures"')]
    for words in (STAIN, "0 of 1 criteria met", "pilot fails: direction was not measured", "not measured"):
        assert words in first
