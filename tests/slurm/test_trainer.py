"""A stage on rows in a job: upstream's real trainer with the patch stack, on processors; minutes a test.

Skipped where upstream's environment (``LEONARDO_UPSTREAM_VENV``) or its patched tree (``LEONARDO_UPSTREAM``) is not
there. ``LEONARDO_WARM_START`` names a desk policy to begin with; else one is made, in two minutes.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from rich.console import Console

from leonardo.engine.upstream.checkpoint import to_upstream
from leonardo.evidence import read
from leonardo.gates.steps import read_records
from leonardo.jobs.folder import read_plan
from leonardo.jobs.unpacked import read_unpacked
from leonardo.overlay.stack import read_stack, unpatched
from leonardo.rollout.families import load_family
from leonardo.settings import LAUNCH
from leonardo.site import load_site
from leonardo.stages.definition import load_stage
from leonardo.stages.recipe import Recipe, opened
from leonardo.tasks.desk import generate, write_rows
from tests.slurm.conftest import PROJECT, ended, wait_for
from tests.slurm.test_stages import leonardo, site

__all__ = ["site"]
pytestmark = pytest.mark.slow

STEPS = "steps.jsonl"
MODEL = """\
name: desk-in-a-job
start: tests/{name}
upstream: {{max_prompt_token_length: 256, response_length: 512, pack_length: 768, learning_rate: 2.0e-3}}
shapes:
  none: {{nodes: {nodes}, learners: [1], engines: 1, memory: 2, sandbox_memory: 0.3, reason: a test}}
"""


@pytest.fixture
def places() -> tuple[str, ...]:
    """Options that name upstream's tree and Python; skips, with the reason, where one is not there."""
    python = Path(os.environ.get("LEONARDO_UPSTREAM_VENV", PROJECT / ".venv-upstream")) / "bin/python"
    tree = Path(os.environ.get("LEONARDO_UPSTREAM", PROJECT / "upstream"))
    if not python.exists():
        pytest.skip(f"no environment of upstream's trainer in {python.parent.parent} (make upstream-env)")
    if missing := unpatched(read_stack(PROJECT / "patches"), tree):
        pytest.skip(f"the patch stack is not on {tree}: {missing[0]} (make apply-patches)")
    return ("--upstream", str(tree), "--upstream-python", str(python))


@pytest.fixture
def stage(site: Path, tmp_path: Path) -> Callable[..., Path]:
    """Writes a stage of reproduce's form, with its model and its rows; they lie where a site has them."""

    def write(nodes: int, updates: int, state_every: int = 1) -> Path:
        desk = load_site("desk").upstream
        known = yaml.safe_load(site.read_text())
        flags = {name: value for name, value in desk.flags.items() if name != "num_learners_per_node"}
        flags["pool_size"] = 2  # each is a process that imports torch
        known["upstream"] = {
            "flags": flags,
            "environment": desk.environment | {"GLOO_SOCKET_IFNAME": "eth0"},
            "ray": {"object-store-memory": 300_000_000},
        }
        site.write_text(yaml.safe_dump(known))
        shared = tmp_path / "shared"
        model = to_upstream(_policy(site, tmp_path), shared / "models")
        rows = tmp_path / "rows.jsonl"
        write_rows(rows, generate("train", 16, 1))
        leonardo("build", rows, "--site", site, "--out", tmp_path / "out", app="assets")
        small = yaml.safe_load((LAUNCH / "stages/reproduce.yaml").read_text())
        smoke = load_stage("smoke").upstream
        small |= {
            "name": "reproduce-small", "after": "", "model": str(tmp_path / "model.yaml"), "rows": "data/small",
            "episode": {}, "job": {"minutes": 30, "tmp": 0.5, "restarts": 2, "grace": 400},
            "start_within": 900, "stall_after": 300,
            "upstream": smoke | {"total_episodes": 32 * updates, "checkpoint_state_freq": state_every},
        }  # fmt: skip
        for criterion in small["criteria"]:
            if criterion["figure"] == "updates":
                criterion["least"] = updates
        (tmp_path / "model.yaml").write_text(MODEL.format(name=model.name, nodes=nodes))
        path = tmp_path / "reproduce-small.yaml"
        path.write_text(yaml.safe_dump(small))
        leonardo("data", rows, shared / "data/small", "--site", site, "--stage", path, "--out", tmp_path / "out")
        return path

    return write


def _policy(site: Path, place: Path) -> Path:
    if "LEONARDO_WARM_START" in os.environ:
        return Path(os.environ["LEONARDO_WARM_START"])
    smoke, console = load_stage("smoke"), Console(quiet=True)
    (place / "warm").mkdir()
    with opened("auto", console) as choice:
        recipe = Recipe(smoke.corpus_sizes(), 1, load_site(site), choice, place / "warm", console)
        recipe.prepare("prepare")
        return recipe.warm_start("warm start", smoke.warm_start_config(), load_family("qwen3.5"))


def _submitted(*words: str | Path) -> tuple[str, Path]:
    said = leonardo("submit", *words)
    run = Path(said.rpartition("folder ")[2].strip())
    return str(read_plan(run)["job"]), run


def _log(run: Path) -> str:
    return "".join(path.read_text(errors="replace")[-4000:] for path in sorted(run.glob("slurm-*.log")))


def _left_over(run: Path) -> list[str]:
    """Processes of a run, on the nodes, which are of this machine."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        if str(run) in words or any(word in words for word in ("raylet", "gcs_server", "VLLM::", "ray::")):
            found.append(words[:200])
    return found


def _judged(run: Path, updates: int, starts: int) -> dict[str, Any]:
    said = leonardo("collect", run)
    assert f"ok: COMPLETED, exit code 0, {starts} starts" in said
    verdict = json.loads((run / "out/reproduce-small.json").read_text())
    assert verdict["ok"] and verdict["verdict"] == "pass", verdict
    assert [record.step for record in read_records(run / STEPS)] == list(range(1, updates + 1))
    figures = verdict["figures"]
    assert (figures["updates"], figures["weights_agree"], figures["checkpoint_whole"]) == (updates, True, True)
    assert figures["rollouts_after_update"] > 0
    for pin in ("patches", "upstream", "packages", "driver", "base_policy"):
        assert verdict["pins"][pin], pin
    assert verdict["pins"]["data"]["tasks"] and (run / "index.html").is_file()
    entries = read(run.parent / "ledger.jsonl")
    assert [entry.name for entry in entries] == ["job reproduce-small-desk-in-a-job-upstream", "reproduce-small"]
    leonardo("collect", run)
    assert len(read(run.parent / "ledger.jsonl")) == 2
    return dict(figures)


def test_a_run_that_is_interrupted_goes_on_from_its_state_and_is_judged(
    stage: Callable[..., Path], site: Path, places: tuple[str, ...]
) -> None:
    """The time limit is near in the second update: its state is saved, though none is due, and no update is lost."""
    path = stage(1, 4, state_every=1000)
    job, run = _submitted(path, "--site", site, *places)
    deadline = time.monotonic() + 500
    while not read_records(run / STEPS):
        assert time.monotonic() < deadline and not ended(wait_for(job, bool)), _log(run)
        time.sleep(0.2)
    subprocess.run(["scancel", "--batch", "--signal=USR1", job], check=True)
    (state,) = wait_for(job, ended, 500)
    assert (state.name, state.exit_code, state.restarts) == ("COMPLETED", 0, 1), _log(run)
    whole = "".join(each.read_text() for each in run.glob("slurm-*.log"))
    saved = re.search(r"leonardo: asked to stop: the state of step (\d) is saved", whole)
    assert saved and "job: going on from state global_step" in whole, _log(run)
    # its weights were never handed over: had it been made again, they would have been
    assert [each.step for each in read_records(run / STEPS) if each.weights_agree is None] == [int(saved[1])]
    assert not _left_over(run)
    left = subprocess.run(["srun", "-A", "project", "-w", state.nodes, "ls", "-A", "/tmp/node"], capture_output=True)
    assert left.stdout == b""
    _judged(run, 4, starts=2)


def test_learner_and_engine_on_two_nodes(stage: Callable[..., Path], site: Path, places: tuple[str, ...]) -> None:
    """Weights go from the one to the other over gloo."""
    job, run = _submitted(stage(2, 2), "--site", site, *places)
    (state,) = wait_for(job, ended, 560)
    assert (state.name, state.exit_code) == ("COMPLETED", 0), _log(run)
    assert not _left_over(run)
    figures = _judged(run, 2, starts=1)
    assert "node[1-2]" in figures["nodes"]


def test_sandboxes_on_nodes_of_their_own(stage: Callable[..., Path], site: Path, places: tuple[str, ...]) -> None:
    """The trainer on one kind of node; environments on the other, where their layers were unpacked ahead."""
    path = stage(1, 2)
    known = yaml.safe_load(site.read_text())
    pools = known["cluster"]["pools"]
    pools["nodes"]["partition"] = "gpu"
    pools["cpu"] = {"partition": "cpu", "cores": 8, "memory": 15, "tmp": "/tmp/node", "tmp_size": 3}
    known["node_cache"] = "/tmp/node/layers"
    site.write_text(yaml.safe_dump(known))
    apart = ("--pool", "nodes", "--sandbox-pool", "cpu", "--sandbox-nodes", "1")
    job, run = _submitted(path, "--site", site, *places, *apart)
    (state,) = wait_for(job, ended, 560)
    assert (state.name, state.exit_code) == ("COMPLETED", 0), _log(run)
    assert not _left_over(run)
    _judged(run, 2, starts=1)
    assert json.loads((run / "evidence.json").read_text())["figures"]["node_count"] == 2
    ((node, staged),) = read_unpacked(run).items()
    assert node == "node2" and staged["layers"] == staged["wanted"] > 0, staged
    on_node1 = subprocess.run(["srun", "-A", "project", "-w", "node1", "ls", "-A", "/tmp/node"], capture_output=True)
    assert b"layers" not in on_node1.stdout  # no sandbox was ever there
