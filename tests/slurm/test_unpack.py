"""Layers that a job unpacks on its nodes while the trainer loads."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from leonardo.assets.store import AssetStore
from leonardo.jobs.collect import collect
from leonardo.jobs.folder import events
from leonardo.jobs.plan import JobPlan
from leonardo.jobs.unpacked import read_unpacked
from leonardo.sandbox.driver import Driver
from leonardo.site import load_site
from leonardo.tasks.task import Task
from tests.hooks.test_sandbox import rows_of
from tests.rootfs import build_root_archive
from tests.slurm.conftest import COUNTER, SITE, ended, queue, wait_for
from tests.slurm.test_apart import STAND_IN

FOLLOW = 'while (: < "/dev/tcp/${3%:*}/${3#*:}") 2> /dev/null; do sleep 0.2; done'
"""A node that joined ends with the head, so that nobody waits for it."""


@pytest.fixture
def loading(make_plan: Callable[..., JobPlan], tmp_path: Path) -> Callable[..., JobPlan]:
    """A job on both nodes that counts as long as a trainer would load; ``unpacked`` are its rows."""

    def make(goal: int, unpacked: Path, environment: dict[str, str], **changes: object) -> JobPlan:
        stand_in = tmp_path / "bin/ray"
        stand_in.parent.mkdir(exist_ok=True)
        stand_in.write_text(STAND_IN.replace("sleep 1000", FOLLOW))
        stand_in.chmod(0o755)
        plan = make_plan(**changes)
        words = (sys.executable, str(COUNTER), str(plan.folder), str(goal))
        asked = replace(plan.resources, nodes=2, cores=2, gpus=4, gres=("gpu:4",))
        variables = {**plan.environment, "LEONARDO_NOTES": str(tmp_path / "notes"), **environment}
        return replace(plan, command=words, ray=stand_in, resources=asked, environment=variables, unpacked=unpacked)

    return make


def test_layers_are_there_when_the_trainer_is(
    loading: Callable[..., JobPlan], tmp_path: Path, driver: Driver, make_task: Callable[..., Task]
) -> None:
    """Each node unpacks them beside the main step, and says so; a second job finds them there."""
    archive = build_root_archive(tmp_path / "root.tar")
    bases = f"  tiny:1: {{registry: false, substitute: {{kind: archive, path: {archive}, reason: a test}}}}"
    path = tmp_path / "site.yaml"
    path.write_text(SITE.format(cache=tmp_path / "cache", shared=tmp_path, bases=bases))
    site = load_site(path)
    tasks = [make_task(f"echo {number} > /here", f"t{number}") for number in range(3)]
    store = AssetStore(site.cache / "assets", driver, site)
    store.build(tasks)
    rows = rows_of([store.prepared(task).name for task in tasks], tmp_path / "rows.jsonl")
    store.close()
    there = {
        "LEONARDO_SITE": str(path),
        "LEONARDO_NODE_CACHE": f"/tmp/node/{tmp_path.name}",
        "LEONARDO_NODE_BUDGET": "1",
    }
    for name, new in (("first", 4), ("second", 0)):
        plan = loading(60, rows, there, name=name)
        (state,) = wait_for(queue(plan), ended, 90)
        (log,) = plan.folder.glob("slurm-*.log")
        assert (state.name, state.exit_code) == ("COMPLETED", 0), log.read_text()
        said = read_unpacked(plan.folder)
        assert sorted(said) == ["node1", "node2"], log.read_text()
        for staged in said.values():
            assert (staged["layers"], staged["wanted"], staged["new"], staged["reason"]) == (4, 4, new, "")
            assert staged["operations"] == (6 if new else 2)
        noted = [event.event for event in events(plan.folder)]
        assert sum("4 of 4 layers are unpacked" in event for event in noted) == 2
        assert noted.index("started") == 0 and noted[-1] == "ended"
        figures = collect(plan.folder, plan.folder.parent / "ledger.jsonl")["figures"]
        assert (figures["layers_unpacked"], figures["unpack_operations"]) == ("4 of 4", 6 if new else 2)


def test_what_cannot_be_unpacked_does_not_fail_the_job(loading: Callable[..., JobPlan], tmp_path: Path) -> None:
    """Rows that are not there: said, and the trainer goes on."""
    site = tmp_path / "site.yaml"
    site.write_text(SITE.format(cache=tmp_path / "cache", shared=tmp_path, bases="  {}"))
    there = {"LEONARDO_SITE": str(site), "LEONARDO_NODE_CACHE": f"/tmp/node/{tmp_path.name}"}
    plan = loading(40, tmp_path / "none.jsonl", there)
    (state,) = wait_for(queue(plan), ended, 90)
    assert (state.name, state.exit_code) == ("COMPLETED", 0)
    said = json.loads((plan.folder / "unpacked-node1.json").read_text())
    assert "none.jsonl" in said["reason"] and said["layers"] == 0


def test_the_trainer_neither_waits_for_it_nor_is_held_up(loading: Callable[..., JobPlan], tmp_path: Path) -> None:
    """It has the nodes' cores and GPUs beside the main step, and ends with it, here in the middle of its work."""
    site = tmp_path / "site.yaml"
    site.write_text(SITE.format(cache=tmp_path / "cache", shared=tmp_path, bases="  {}"))
    os.mkfifo(rows := tmp_path / "rows.jsonl")
    plan = loading(30, rows, {"LEONARDO_SITE": str(site), "LEONARDO_NODE_CACHE": f"/tmp/node/{tmp_path.name}"})
    (state,) = wait_for(queue(plan), ended, 90)
    (log,) = plan.folder.glob("slurm-*.log")
    assert (state.name, state.exit_code) == ("COMPLETED", 0), log.read_text()
    assert [entry["reason"] for entry in read_unpacked(plan.folder).values()] == ["it was told to end"] * 2
