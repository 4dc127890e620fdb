"""A stage end to end on a policy that trains in seconds: shut, forced, stained, opened, stopped, gone on with."""

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from leonardo.errors import InputError
from leonardo.evidence import LEDGER, Evidence, append, check, read
from leonardo.sandbox.driver import Driver
from leonardo.settings import LAUNCH
from leonardo.stages.asked import Asked, UpstreamPlace
from leonardo.stages.climb import rungs
from leonardo.stages.figures import IN_A_RUN
from leonardo.stages.training import run_stage

SMALL = {
    "corpus": {"train": 4, "held_out": 2, "unprepared": 2},
    "desk": {"steps": 2, "groups": 2, "group_size": 2, "wanted_groups": 1, "rounds": 1},
    "episode": {"steps": 2, "turn_tokens": 12, "live": 8, "threads": 4},
}
KEPT = ("exit_code", "finite", "early_stop", "groups_without_signal_trained")


class Bench:
    """Stages of small sizes, and where they run."""

    def __init__(self, folder: Path, site: Path, policy: Path, driver: Driver) -> None:
        self.folder, self.runs, self.out = folder, folder / "runs", folder / "out"
        place = UpstreamPlace(folder, folder / "bin/python")
        self.asked = Asked("", "desk", 1, str(site), driver.name, place, policy)

    def stage(self, name: str, **changes: object) -> Asked:
        values = yaml.safe_load((LAUNCH / "stages" / f"{name}.yaml").read_text()) | SMALL
        values["attempts"] = min(1, values.get("attempts", 0))
        values["criteria"] = [each for each in values["criteria"] if each["figure"] in KEPT]
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(values | changes))
        return replace(self.asked, name=str(path))

    def run(self, asked: Asked):
        out = self.out / f"{Path(asked.name).stem}.json"
        return run_stage(asked, runs=self.runs, out_path=out, console=Console(quiet=True))

    def entries(self) -> list[Evidence]:
        return read(self.runs / LEDGER)

    def verdict(self, name: str) -> dict:
        return json.loads((self.out / f"{name}.json").read_text())


@pytest.fixture
def bench(tmp_path: Path, desk_site: Path, micro_policy: Path, driver: Driver) -> Bench:
    return Bench(tmp_path, desk_site, micro_policy, driver)


def test_a_stage_is_shut_forced_and_its_stain_goes_on(bench: Bench) -> None:
    smoke = bench.stage("smoke")
    with pytest.raises(InputError, match="smoke is shut: gates has not been run here"):
        bench.run(smoke)
    assert bench.entries() == []

    forced = bench.run(replace(smoke, force="a trial"))
    assert forced.ok
    assert "Plumbing evidence only" in forced.sentence
    (entry,) = bench.entries()
    assert entry.forced.endswith("the ledger has no entry of it: a trial")
    assert entry.stains == (entry.forced,)
    assert (entry.kind, entry.verdict, entry.builds_on) == ("stage", "pass", "")
    assert {Path(record.path).name for record in entry.records} == {"run.json", "steps.jsonl"}
    facts = json.loads((forced.run_folder / "run.json").read_text())
    assert facts["base"] == str(bench.asked.policy)
    verdict = bench.verdict("smoke")
    assert verdict["criteria"]["finite"] == {"value": True, "threshold": "is true", "ok": True}
    assert verdict["stains"] == [entry.forced]

    calibrate = bench.run(bench.stage("calibrate"))  # a stained pass opens it
    assert calibrate.stains == entry.stains
    last = bench.entries()[-1]
    assert (last.builds_on, last.forced, last.stains) == (entry.digest, "", entry.stains)
    assert check(bench.runs / LEDGER).ok


def test_another_recipe_is_refused_by_the_pin_that_differs(bench: Bench) -> None:
    bench.run(replace(bench.stage("smoke"), force="a trial"))
    changed = bench.stage("calibrate", desk=SMALL["desk"] | {"learning_rate": 0.001})
    with pytest.raises(InputError, match=r"recipe.learning_rate is 0.001, there it was 0.002"):
        bench.run(changed)


def test_the_environment_gates_open_smoke_and_the_plan_says_so(bench: Bench) -> None:
    smoke = bench.stage("smoke")
    forced = bench.run(replace(smoke, force="for its pins"))
    pins = {name: bench.entries()[-1].pins[name] for name in ("site", "driver", "bases")}
    gates = append(bench.runs / LEDGER, Evidence(name="gates", kind="gate", verdict="pass", pins=pins))
    opened = bench.run(smoke)
    assert (opened.ok, opened.stains) == (True, ())
    assert bench.entries()[-1].builds_on == gates.digest
    assert forced.run_folder != opened.run_folder
    states = {rung.name: rung.state for rung in rungs(bench.asked, bench.runs)}
    assert (states["gates"], states["calibrate"], states["pilot"]) == ("passed", "shut", "shut")


def test_a_run_that_an_early_stop_ends_fails_and_says_why(bench: Bench) -> None:
    rule = {"figure": "entropy_mean", "window": 1, "most": 0.0, "reason": "so it is"}
    pilot = replace(bench.stage("pilot", early_stop=[rule]), force="a trial")
    outcome = bench.run(pilot)
    assert not outcome.ok
    assert outcome.figures["early_stop"] == "entropy_mean"
    assert "Training ended early: early stop, step 1: entropy_mean was" in outcome.sentence
    assert bench.verdict("pilot")["criteria"]["early_stop"]["ok"] is False


def test_an_interrupted_pilot_goes_on_where_it_was(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    pilot = replace(bench.stage("pilot"), force="a trial")
    whole = bench.run(pilot)
    assert set(whole.figures) == set(IN_A_RUN)

    with monkeypatch.context() as patch:
        patch.setattr("leonardo.stages.limits.RunLimits.look", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bench.run(pilot)
    (left,) = [folder for folder in bench.runs.glob("pilot-*") if not (folder / "run.json").exists()]
    assert len((left / "steps.jsonl").read_text().splitlines()) == 1
    with monkeypatch.context() as patch:  # at the very end
        patch.setattr("leonardo.evidence.append", full)
        with pytest.raises(OSError, match="No space"):
            bench.run(pilot)
    resumed = bench.run(pilot)
    assert resumed.run_folder == left
    assert len(bench.entries()) == 2
    weights = [(run.run_folder / "policy/model.safetensors").read_bytes() for run in (whole, resumed)]
    assert weights[0] == weights[1]
    assert resumed.figures["direction"] == whole.figures["direction"] == "too few pairs"


def full(*_: object) -> None:
    """What a full disk does to the ledger."""
    raise OSError(errno.ENOSPC, "No space left on device")


def interrupted(self: object, record: object) -> bool:
    """What Ctrl-C does after a step."""
    raise KeyboardInterrupt
