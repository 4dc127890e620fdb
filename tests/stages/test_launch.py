"""The ladder before the queue, and the verdict on a job of upstream's trainer after it; without a Slurm."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from leonardo.errors import InputError
from leonardo.evidence import LEDGER, Evidence, append, read
from leonardo.gates.steps import append_record
from leonardo.jobs.folder import write_folder
from leonardo.site import load_site
from leonardo.stages.asked import Asked
from leonardo.stages.climb import pins_of
from leonardo.stages.definition import load_model, load_stage
from leonardo.stages.figures import IN_A_JOB
from leonardo.stages.launch_note import note_stage
from leonardo.stages.launch_options import StageOptions
from leonardo.stages.launch_ready import Ready, check, choices_of, ready_stages, unset_variables
from leonardo.stages.launch_verdict import Verdict, judge
from leonardo.stages.trainers import UpstreamPlace, _upstream_run
from leonardo.stages.training import run_stage
from tests.gates.test_signal import record

SITE = """
name: cluster
cache: {place}/cache
bases:
  ubuntu:22.04: {{registry: false, substitute: {{kind: archive, path: {place}/root.tar, reason: a test}}}}
cluster:
  account: project
  pools: {{nodes: {{partition: test, cores: 8, memory: 16, gpus: 4, gpu: none, tmp_size: 8}}}}
  qualities: [{{most_minutes: 2000, most_nodes: 2}}]
  roots: {{shared: {place}/shared, scratch: {place}/shared, least_free: 0, least_files: 0}}
"""
MODEL = """
name: small
start: tests/small
shapes: {none: {nodes: 1, learners: [1], engines: 1, memory: 1, reason: a test}}
"""
STAGE = """
name: reproduce-small
after: pilot
shows: it was repeated
model: model.yaml
rows: data/rows
upstream: {num_unique_prompts_rollout: 2, num_samples_per_prompt_rollout: 2, total_episodes: 12}
criteria:
  - {figure: exit_code, equals: 0, reason: "it ends well"}
  - {figure: updates, least: 3, reason: "all of them"}
  - {figure: weights_agree, equals: true, reason: "the engine holds the learner's weights"}
"""

Plan = Callable[..., list[Ready]]


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Plans stages by name, as ``leonardo launch submit`` does."""
    monkeypatch.delenv("LEONARDO_CACHE", raising=False)
    (tmp_path / "site.yaml").write_text(SITE.format(place=tmp_path))
    (tmp_path / "model.yaml").write_text(MODEL)
    (tmp_path / "stage.yaml").write_text(STAGE)
    rows = tmp_path / "shared/data/rows"
    for path, text in {"dataset/train.jsonl": "{}\n", "pins.json": '{"tasks": "t1"}'}.items():
        (rows / path).parent.mkdir(parents=True, exist_ok=True)
        (rows / path).write_text(text)
    (tmp_path / "shared/models/small").mkdir(parents=True)

    def make(*stages: str, force: str = "", engine: str = "", after: tuple[str, ...] = ()) -> list[Ready]:
        names = [str(tmp_path / name) if name.endswith(".yaml") else name for name in stages]
        site, model = str(tmp_path / "site.yaml"), str(tmp_path / "model.yaml")
        choices = choices_of(StageOptions(site, account="project", model=model, engine=engine, force=force))
        return list(ready_stages(names, choices, None, None, None, after))

    return make


def shut(ready: Ready) -> list[str]:
    return [finding.what for finding in check(ready) if finding.id == "ladder.shut"]


def passed(ready: Ready, name: str = "pilot", **pins: Any) -> Evidence:
    """A pass of a stage with the pins of ``ready``'s site, engine and packages."""
    assert ready.asked is not None
    asked = Asked(name, ready.asked.engine, 1, ready.asked.site, "auto", ready.asked.place)
    known = pins_of(asked, "namespaces") | pins
    figures = {"exit_code": 0}
    entry = Evidence(name=name, verdict="pass", kind="stage", pins=known, figures=figures)
    return append(ready.plan.folder.parent / LEDGER, entry)


def test_a_stage_on_rows_opens_on_a_pass_below_it_with_the_same_machinery(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model, bounds and recipe are the rows' own; site, engine, packages and patches are not."""
    monkeypatch.setattr("leonardo.stages.climb.criteria_below", lambda *_: ())  # a whole pilot is another test's
    (ready,) = plan("stage.yaml")
    assert shut(ready) == ["reproduce-small is shut: pilot has not been run here: the ledger has no entry of it"]
    passed(ready, patches="others")
    assert "patches is" in shut(plan("stage.yaml")[0])[0]
    entry = passed(ready)
    (opened,) = plan("stage.yaml")
    assert (shut(opened), opened.ground.basis) == ([], entry.digest)


def test_a_chain_opens_by_dependency_of_the_same_engine_and_force_stains(plan: Plan) -> None:
    *_, by_desk = plan("pilot", "stage.yaml")
    assert shut(by_desk)
    first, last = plan("pilot", "stage.yaml", engine="upstream")
    assert (bool(shut(first)), shut(last), last.ground.waits_for) == (True, [], "pilot")
    (smoke,) = plan("smoke", engine="desk")
    assert not shut(smoke)  # the job runs the gates itself
    (forced,) = plan("stage.yaml", force="a trial")
    assert not shut(forced) and "a trial" in forced.ground.forced
    *_, calibrate = plan("calibrate", engine="desk", force="it's a trial")
    assert "--force 'it'\"'\"'s a trial'" in calibrate.script
    with pytest.raises(InputError, match="not one line"):
        plan("stage.yaml", force="a\nb")


def test_a_chain_in_the_wrong_order_is_said_to_be_one(plan: Plan) -> None:
    with pytest.raises(InputError, match=r"calibrate is named before smoke, which opens it\. Name smoke first"):
        plan("calibrate", "smoke", engine="desk")


def test_a_cache_on_a_variable_that_is_not_set_is_found(plan: Plan, tmp_path: Path) -> None:
    site = tmp_path / "site.yaml"
    caches = {"cache": "$WROK/cache", "node_cache": "$NO_SUCH/layers", "bases": {}}
    site.write_text(yaml.safe_dump(yaml.safe_load(site.read_text()) | caches))
    (ready,) = plan("smoke", engine="desk")
    found = check(ready)
    assert [finding.what for finding in found if finding.id.startswith("paths.")] == [
        "cache of the site is $WROK/cache, which is not set here",
        "node_cache of the site is $NO_SUCH/layers, which is not set here",
    ]
    assert unset_variables(ready) == ["$NO_SUCH", "$WROK"]


def test_a_scheduler_that_does_not_answer_has_refused_nothing(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ready,) = plan("smoke", engine="desk")
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    for name, code in {"sbatch": 1, "sacctmgr": 1, "scontrol": 1}.items():
        (programs / name).write_text(f"#!/bin/sh\necho '{name}: error: no luck' >&2; exit {code}\n")
        (programs / name).chmod(0o755)
    (away,) = [finding for finding in check(ready) if finding.id.startswith("slurm.")]
    assert str(away) == "slurm.away: Slurm cannot be asked (no luck). Check again where its controller answers"
    (programs / "scontrol").write_text("#!/bin/sh\nexit 0\n")
    (refused,) = [finding for finding in check(ready) if finding.id.startswith("slurm.")]
    assert str(refused).startswith("slurm.refused: the scheduler would not take it: no luck. Change")


def test_a_queued_job_opens_what_waits_for_it(plan: Plan) -> None:
    (pilot,) = plan("pilot", engine="upstream", force="a trial")
    write_folder(pilot.plan, pilot.script)
    path = pilot.plan.folder / "job.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"job": "77"}))
    assert not shut(plan("stage.yaml", after=("77",))[0])
    assert shut(plan("stage.yaml", after=("78",))[0])


@pytest.fixture
def ended(plan: Plan) -> Callable[..., tuple[Ready, Verdict]]:
    """A job of the trainer that left ``steps`` records and ended so; what it was judged to be."""

    def end(
        steps: int, code: int | None, state: str = "FAILED", force: str = "a test", log: str = "", damage: str = ""
    ) -> Any:
        (ready,) = plan("stage.yaml", force=force)
        assert ready.asked is not None
        folder = ready.plan.folder
        write_folder(ready.plan, ready.script)
        note_stage(ready.plan, ready.asked, ready.ground)
        (folder / "slurm-5.log").write_text(log)
        (folder / "steps.jsonl").write_text(damage)
        for step in range(1, steps + 1):
            append_record(folder / "steps.jsonl", record(step))
        figures = {"state": state, "exit_code": code, "starts": 1, "restarts": 0, "nodes": "n1", "node_count": 1}
        job = {"figures": figures, "reason": "" if code == 0 else f"exit code {code}", "pins": {"job": "5"}}
        verdict = judge(folder, job, folder.parent, Console(quiet=True))
        assert verdict is not None
        return ready, verdict

    return end


@pytest.mark.parametrize(
    ("steps", "code", "state", "word", "said"),
    [
        (3, 0, "COMPLETED", "pass", "it was repeated"),
        (2, 0, "COMPLETED", "fail", "updates is 2 (asked: at least 3)"),
        (2, 1, "FAILED", "fail", "exit_code is 1"),
        (2, 3, "FAILED", "open", "the machine failed, after 2 of 3 updates"),
        (3, 143, "FAILED", "open", "it was told to stop, after 3 of 3 updates"),
        (0, 2, "FAILED", "open", "something that the job needs was missing"),
        (2, None, "NODE_FAIL", "open", "the job's end was NODE_FAIL"),
        (3, 0, "CANCELLED", "open", "the job's end was CANCELLED"),
        (3, None, "unknown", "open", "how the job ended is not known"),
    ],
)
def test_the_verdict_on_a_job(
    ended: Callable[..., tuple[Ready, Verdict]], steps: int, code: int | None, state: str, word: str, said: str
) -> None:
    """What the machine ended is no verdict on learning: the ledger gets no entry of the stage."""
    ready, verdict = ended(steps, code, state)
    assert verdict.word == word and said in verdict.sentence, verdict.sentence
    written = json.loads((ready.plan.folder / "out/reproduce-small.json").read_text())
    assert (written["ok"], written["verdict"], written["stains"]) == (word == "pass", word, list(verdict.stains))
    assert "a test" in verdict.stains[0]
    entries = read(ready.plan.folder.parent / LEDGER)
    assert [entry.verdict for entry in entries] == ([] if word == "open" else [word])
    for entry in entries:
        assert set(entry.figures) == set(IN_A_JOB)
        names = {Path(each.path).name for each in entry.records}
        assert {"run.json", "job.sh", "submitted.json", "environment-upstream.txt"} <= names
        assert entry.pins["data"]["tasks"] == "t1" and entry.pins["patches"] and entry.pins["base_policy"]["files"]


def test_damaged_step_records_are_no_verdict(ended: Callable[..., tuple[Ready, Verdict]]) -> None:
    """Not even where those that are left meet all criteria."""
    ready, verdict = ended(3, 0, "COMPLETED", damage="garbage\n")
    assert verdict.word == "open" and "its step records are damaged, after 3 of 3 updates" in verdict.sentence
    assert not read(ready.plan.folder.parent / LEDGER)


@pytest.mark.parametrize(
    ("log", "word"),
    [
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.", "open"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "open"),
        ("KeyError: 'rewards'", "fail"),
    ],
)
def test_an_error_of_the_trainer_that_the_machine_made_is_no_verdict(
    ended: Callable[..., tuple[Ready, Verdict]], log: str, word: str
) -> None:
    assert ended(2, 1, log=f"step 2\n{log}\n")[1].word == word


def test_a_pass_that_a_job_should_have_made_and_did_not_is_a_stain(plan: Plan, tmp_path: Path) -> None:
    *_, ready = plan("pilot", "stage.yaml", engine="upstream")
    assert ready.asked is not None
    write_folder(ready.plan, ready.script)
    note_stage(ready.plan, ready.asked, ready.ground)
    figures = {"state": "COMPLETED", "exit_code": 0, "starts": 1, "restarts": 0}
    job = {"figures": figures, "reason": "", "pins": {"job": "5"}}
    verdict = judge(ready.plan.folder, job, ready.plan.folder.parent, Console(quiet=True))
    assert verdict is not None and verdict.stains == (
        "the job of pilot ended well, but pilot has not been run here: the ledger has no entry of it",
    )


def test_on_a_cluster_the_models_shape_says_how_it_lies_on_the_gpus() -> None:
    """The shipped cluster's site has no word of learners and engines: the desk's sites have."""
    stage, model, site = load_stage("pilot"), load_model("desk"), load_site("leonardo")
    assert "num_learners_per_node" not in site.upstream.flags
    run = _upstream_run(stage, model, site, UpstreamPlace(Path("tree"), Path("python")))
    names = ("num_learners_per_node", "vllm_num_engines", "deepspeed_stage")
    assert [run.flags[name] for name in names] == [[1], 1, 3]


def test_a_stage_on_rows_is_a_job() -> None:
    asked = Asked("reproduce", "upstream", 1, "leonardo", "auto", UpstreamPlace(Path("tree"), Path("python")))
    with pytest.raises(InputError, match="trains on data/tmax-15k, in a job over nodes"):
        run_stage(asked, runs=Path("none"), out_path=Path("none/out.json"), console=Console(quiet=True))


def test_a_flag_that_the_trainer_does_not_take_is_found_before_the_queue(plan: Plan, tmp_path: Path) -> None:
    package = tmp_path / "tree/training/open-instruct/open_instruct"
    package.mkdir(parents=True)
    (package / "grpo_fast.py").write_text("parser = ArgumentParserPlus((Settings,))\n")
    names = ("total_episodes", "num_unique_prompts_rollout", "deepspeed_zpg", "vllm_num_engines")
    fields = "".join(f"    {name}: int = 1\n" for name in names)
    (package / "settings.py").write_text(f"from dataclasses import dataclass\n@dataclass\nclass Settings:\n{fields}")
    (ready,) = plan("stage.yaml")
    assert ready.trainer is not None
    found = check(replace(ready, trainer=replace(ready.trainer, tree=tmp_path / "tree")))
    (flag,) = [finding for finding in found if finding.id == "flags.unknown"]
    assert flag.what == "upstream's trainer takes no flag num_samples_per_prompt_rollout"
