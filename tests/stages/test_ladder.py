"""Promotion: what opens a stage, what shuts it, and what is said."""

from pathlib import Path

import pytest

from leonardo.evaluation.compare import ABSENT
from leonardo.evidence import Evidence, append, read, record_files
from leonardo.files import write_atomic
from leonardo.gates.criteria import Criterion
from leonardo.stages.ladder import GATES, ladder, name_below, opening
from leonardo.stages.pins import differences

PINS = {
    "site": "desk", "driver": "namespaces", "engine": "desk", "model": "desk", "base_policy": "p1", "harness": "h1",
    "data": {"source": "desk", "revision": "d1"}, "bases": {"ubuntu:22.04": "b1"},
    "packages": {"torch": "2.13.0"}, "recipe": {"learning_rate": 0.002}, "upstream": "u1", "patches": "s1",
    "stage": "smoke", "config": "c1", "seed": 1, "assets": "a1",
}  # fmt: skip


def enter(ledger: Path, name: str = "smoke", verdict: str = "pass", says: str = "", stains=(), **pins) -> Evidence:
    return append(
        ledger,
        Evidence(name=name, verdict=verdict, says=says, pins=PINS | pins, stains=stains),
    )


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def look(ledger: Path, after: str = "smoke", **pins):
    mine = PINS | {"stage": "calibrate", "config": "c2", "assets": "a2"} | pins
    return opening(after, mine, read(ledger), ledger.parent)


def test_the_shipped_ladder() -> None:
    assert [stage.name for stage in ladder()][:3] == ["smoke", "calibrate", "pilot"]
    assert ladder()[0].after == GATES


def test_a_pass_with_the_same_pins_opens_it_whatever_its_sizes(ledger: Path) -> None:
    assert look(ledger).missing
    entry = enter(ledger)
    found = look(ledger)
    assert (found.open, found.basis, found.stains) == (True, entry, ())
    assert "smoke passed with these pins (entry 1)" in found.why


def test_the_pin_that_differs_is_named_with_both_values(ledger: Path) -> None:
    enter(ledger)
    for pins, words in (
        ({"recipe": {"learning_rate": 0.001}}, "recipe.learning_rate is 0.001, there it was 0.002"),
        ({"packages": {"torch": "3"}}, "packages.torch is 3, there it was 2.13.0"),
        ({"bases": {"ubuntu:22.04": "b2"}}, "bases.ubuntu:22.04 is b2, there it was b1"),
        ({"base_policy": "p2"}, "base_policy is p2, there it was p1"),
        ({"recipe": {"learning_rate": 0.002, "new": 1}}, f"recipe.new is 1, there it was {ABSENT}"),
    ):
        found = look(ledger, **pins)
        assert not found.open
        assert found.missing
        assert words in found.why


def test_pins_that_are_not_known_yet_are_not_held_against_it(ledger: Path) -> None:
    enter(ledger)
    early = {name: value for name, value in PINS.items() if name not in ("bases", "base_policy")}
    assert opening("smoke", early, read(ledger), ledger.parent).open


def test_upstream_s_code_counts_for_its_engine_only(ledger: Path) -> None:
    enter(ledger)
    assert look(ledger, patches="s2").open
    enter(ledger, engine="upstream")
    assert look(ledger, engine="upstream").open
    assert "patches is s2, there it was s1" in look(ledger, engine="upstream", patches="s2").why


def test_the_last_entry_with_these_pins_decides(ledger: Path) -> None:
    enter(ledger)
    enter(ledger, verdict="fail", says="smoke fails: finite is false.")
    found = look(ledger)
    assert (found.open, found.missing) == (False, False)
    assert found.why == "smoke failed with these pins (entry 2): smoke fails: finite is false."
    enter(ledger, verdict="fail", harness="h2")
    enter(ledger)
    assert look(ledger).open


def test_a_pass_whose_record_was_changed_opens_nothing(ledger: Path) -> None:
    record = ledger.parent / "smoke/steps.jsonl"
    write_atomic(record, "1\n")
    append(ledger, Evidence(name="smoke", verdict="pass", pins=PINS, records=record_files(ledger.parent, [record])))
    assert look(ledger).open
    record.write_text("2\n")
    assert "its record smoke/steps.jsonl was changed" in look(ledger).why


def test_a_pass_by_weaker_criteria_opens_nothing(ledger: Path) -> None:
    """A stage file of somebody's own may have the name of a rung; the shipped one's criteria decide."""
    asked = [Criterion(figure="updates", least=4, reason="so it is")]
    append(ledger, Evidence(name="smoke", verdict="pass", pins=PINS, figures={"updates": 2}))
    found = opening("smoke", PINS, read(ledger), ledger.parent, asked)
    assert (found.open, found.missing) == (False, True)
    assert "other criteria than its file has now (entry 1): updates is 2 (asked: at least 4)" in found.why
    append(ledger, Evidence(name="smoke", verdict="pass", pins=PINS, figures={"updates": 4}))
    assert opening("smoke", PINS, read(ledger), ledger.parent, asked).open


def test_a_ladder_of_one_s_own_lies_in_a_folder(tmp_path: Path) -> None:
    assert name_below("calibrate", "smoke") == name_below(str(tmp_path / "calibrate.yaml"), "smoke") == "smoke"
    (tmp_path / "smoke.yaml").write_text("")
    assert name_below(str(tmp_path / "calibrate.yaml"), "smoke") == str(tmp_path / "smoke.yaml")


def test_a_stain_is_inherited(ledger: Path) -> None:
    enter(ledger, stains=("smoke was forced although gates failed: in a hurry",))
    found = look(ledger)
    assert found.open
    assert "STAINED" in found.why
    assert found.stains == ("smoke was forced although gates failed: in a hurry",)


def test_gates_vouch_for_site_driver_and_the_bases_that_are_used(ledger: Path) -> None:
    gates = {"site": "desk", "driver": "namespaces", "bases": {"ubuntu:22.04": "b1", "debian:12": "x"}, "manifest": "m"}
    append(ledger, Evidence(name=GATES, verdict="pass", kind="gate", pins=gates))
    assert look(ledger, after=GATES).open
    assert "driver is apptainer, there it was namespaces" in look(ledger, after=GATES, driver="apptainer").why
    assert "bases.alpine:3 is z" in look(ledger, after=GATES, bases={"alpine:3": "z"}).why
    assert list(differences({"site": "desk"}, gates, of_gates=True)) == []


def test_a_stage_without_a_rung_below_is_open(ledger: Path) -> None:
    assert look(ledger, after="").open


def test_evidence_of_before_opens_nothing() -> None:
    """Older entries have fewer pins: what they were run on cannot be told."""
    old = Path(__file__).parents[2] / "docs/evidence/two-gpus-smoke/ledger.jsonl"
    found = opening("smoke", PINS, read(old), old.parent)
    assert not found.open
    assert "(absent)" in found.why
