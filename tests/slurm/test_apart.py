"""Jobs of two kinds of nodes: a trainer's, and others for sandboxes alone."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from leonardo.assets.store import AssetStore
from leonardo.hooks.placement import PLACEMENT_VARIABLE
from leonardo.jobs import slurm
from leonardo.jobs.collect import collect
from leonardo.jobs.folder import events
from leonardo.jobs.plan import JobPlan, Resources
from leonardo.jobs.unpacked import read_unpacked
from leonardo.sandbox.driver import Driver
from leonardo.site import load_site
from leonardo.tasks.task import Task
from tests.rootfs import build_root_archive
from tests.slurm.conftest import COUNTER, PROJECT, SITE, ended, queue, running, wait_for

STAND_IN = """\
#!/bin/bash
# Stands for Ray where the job itself is looked at: runs the driver; nodes that join wait.
echo "$(hostname): ray $*" >> "$LEONARDO_NOTES"
[ "$1" = symmetric-run ] || { sleep 1000; exit; }
python3 -c "
import socket, time
listener = socket.create_server(('0.0.0.0', int('$3'.rpartition(':')[2])))
time.sleep(600)" &
listener=$!
trap 'kill "$listener"' EXIT
until grep -q 'ray start' "$LEONARDO_NOTES"; do sleep 0.1; done
while [ "$1" != -- ]; do shift; done
shift
"$@"
"""


@pytest.fixture
def apart(make_plan: Callable[..., JobPlan]) -> Callable[..., JobPlan]:
    """A job with node1 for the trainer and node2 for sandboxes."""

    def make(*command: str, **changes: object) -> JobPlan:
        plan = make_plan(*command, **changes)
        asked = Resources("gpu", 1, 5, 2, 1.0, 0.1, 4, "normal", "project", ("gpu:4",))
        others = Resources("cpu", 1, 5, 8, 12.0, 0.2, 0, "normal", "project", exclusive=True)
        environment = {**plan.environment, PLACEMENT_VARIABLE: "1"}
        return replace(plan, resources=asked, sandboxes=others, environment=environment)

    return make


@pytest.fixture
def counting(apart: Callable[..., JobPlan], tmp_path: Path) -> Callable[..., JobPlan]:
    """The same with a counter as the driver and a stand-in for Ray."""

    def make(goal: int, *code: int, **changes: object) -> JobPlan:
        stand_in = tmp_path / "bin/ray"
        stand_in.parent.mkdir(exist_ok=True)
        stand_in.write_text(STAND_IN)
        stand_in.chmod(0o755)
        plan = apart(**changes)
        words = (sys.executable, str(COUNTER), str(plan.folder), str(goal), *map(str, code))
        notes = {"LEONARDO_NOTES": str(tmp_path / "notes")}
        return replace(plan, command=words, ray=stand_in, environment={**plan.environment, **notes})

    return make


def counted(plan: JobPlan) -> dict:
    """What the counter kept."""
    path = plan.folder / "count.json"
    return json.loads(path.read_text()) if path.exists() else {"count": 0, "starts": []}


def until(seen: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait."""
    deadline = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def left_on(place: Path, number: int) -> list[str]:
    """Scratch folders in a node's /tmp/node, which is a file system of its own."""
    daemon = next(
        e for e in psutil.process_iter(["cmdline"]) if e.info["cmdline"] == ["slurmd", "-D", "-N", f"node{number}"]
    )
    return [path.name for path in Path(f"/proc/{daemon.pid}/root/tmp/node").glob("l[0-9]*")]


def test_exit_code_and_cleaning(counting: Callable[..., JobPlan], tmp_path: Path, place: Path) -> None:
    """The driver's code is the job's; both kinds of nodes are asked, join, and are left clean."""
    plan = counting(2, 7)
    (state,) = wait_for(queue(plan), ended)
    (log,) = plan.folder.glob("slurm-*.log")
    assert (state.name, state.exit_code) == ("FAILED", 7), log.read_text()
    notes = (tmp_path / "notes").read_text()
    assert "node1: ray symmetric-run" in notes and "--min-nodes 2" in notes
    assert (
        "node2: ray start --address 10.77.0.1:" in notes
        and '--num-cpus=0 --num-gpus=0 --resources {"sandbox": 10000}' in notes
    )
    assert left_on(place, 1) == left_on(place, 2) == []
    found = collect(plan.folder, plan.folder.parent / "ledger.jsonl")
    assert found["figures"]["exit_code"] == 7 and found["figures"]["tasks"] == 1
    assert found["reason"] == "exit code 7; the log ends: the trainer has had enough"


def test_layers_are_unpacked_where_sandboxes_are(counting: Callable[..., JobPlan], tmp_path: Path) -> None:
    """Ahead, on the nodes that are for them; the trainer's have no use for layers."""
    rows = tmp_path / "rows.jsonl"
    rows.touch()
    site = tmp_path / "site.yaml"
    site.write_text(SITE.format(cache=tmp_path / "cache", shared=tmp_path, bases="  {}"))
    plan = counting(30)
    there = {"LEONARDO_SITE": str(site), "LEONARDO_NODE_CACHE": f"/tmp/node/{tmp_path.name}"}
    plan = replace(plan, unpacked=rows, environment={**plan.environment, **there})
    (state,) = wait_for(queue(plan), ended)
    (log,) = plan.folder.glob("slurm-*.log")
    assert (state.name, state.exit_code) == ("COMPLETED", 0), log.read_text()
    (said,) = read_unpacked(plan.folder).items()
    assert said[0] == "node2" and "manifest.json" in said[1]["reason"]  # there is no store, and the job goes on


def test_requeue_with_resume(counting: Callable[..., JobPlan], tmp_path: Path) -> None:
    """The whole job is queued again, with both kinds of nodes, and goes on."""
    plan = counting(40)
    job = queue(plan)
    until(lambda: counted(plan)["count"] > 5)
    subprocess.run(["scancel", "--batch", "--signal=USR1", job], check=True)
    (state,) = wait_for(job, ended, 90)
    assert (state.name, state.exit_code, state.restarts) == ("COMPLETED", 0, 1)
    starts = counted(plan)["starts"]
    assert counted(plan)["count"] == 40 and len(starts) == 2 and starts[1][0] > 5
    assert (tmp_path / "notes").read_text().count("node2: ray start") == 2
    assert [event.event for event in events(plan.folder)][2] == "queued again"


def test_cancel(counting: Callable[..., JobPlan]) -> None:
    """Cancelled, nothing lives on, on either kind of node."""
    plan = counting(1000)
    job = queue(plan)
    until(lambda: counted(plan)["count"] > 0)
    slurm.cancel(job)
    (state,) = wait_for(job, ended)
    assert state.name == "CANCELLED"
    until(
        lambda: (
            not [
                e
                for e in psutil.process_iter(["cmdline"])
                if str(plan.folder.parent) in " ".join(e.info["cmdline"] or ())
            ]
        )
    )


def test_a_node_for_sandboxes_that_lacks_something(counting: Callable[..., JobPlan]) -> None:
    """What such a node falls short of is said, by the node, before the trainer starts."""
    plan = counting(5)
    plan = replace(plan, sandboxes=replace(plan.sandboxes, tmp=1000.0))
    (state,) = wait_for(queue(plan), ended)
    (log,) = plan.folder.glob("slurm-*.log")
    assert (state.name, state.exit_code) == ("FAILED", 3)
    assert "node2: /tmp/node has" in log.read_text() and counted(plan)["count"] == 0


@pytest.mark.slow
def test_loss_of_a_node_for_sandboxes(counting: Callable[..., JobPlan], place: Path) -> None:
    """Slurm queues the whole job again; it goes on when the node is back."""
    plan = counting(300)
    job = queue(plan)
    until(lambda: counted(plan)["count"] > 5)
    (place / "down-node2").touch()
    daemon = next(e for e in psutil.process_iter(["cmdline"]) if e.info["cmdline"] == ["slurmd", "-D", "-N", "node2"])
    for process in [daemon, *daemon.parent().children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    wait_for(job, lambda states: not running(states), 60)
    (place / "down-node2").unlink()
    (state,) = wait_for(job, ended, 120)
    assert (state.name, state.exit_code) == ("COMPLETED", 0)
    assert counted(plan)["count"] == 300 and len(counted(plan)["starts"]) == 2


DRIVER = """
import os, sys, ray
from leonardo.hooks.placement import on_sandbox_nodes

ray.init(runtime_env={"env_vars": dict(os.environ)})  # as upstream does

class Environment:
    def run(self, image):
        from leonardo.hooks.sandbox import prepared_backend
        backend = prepared_backend(MemoryError, image=image)
        backend.start()
        said = backend.run_command("cat /here; hostname").stdout.split()
        backend.close()
        return os.uname().nodename, said[0]

pool = [on_sandbox_nodes(ray.remote(Environment)).remote() for _ in range(3)]
print("places", ray.get([actor.run.remote(sys.argv[1]) for actor in pool], timeout=100), flush=True)

@ray.remote
def anything():
    return os.uname().nodename

print("others", set(ray.get([anything.remote() for _ in range(4)])), flush=True)
print("gpus", {node["NodeName"]: node["Resources"].get("GPU", 0) for node in ray.nodes()}, flush=True)
"""


@pytest.mark.slow
def test_sandboxes_on_their_nodes(
    apart: Callable[..., JobPlan], tmp_path: Path, driver: Driver, make_task: Callable[..., Task]
) -> None:
    """Ray over both kinds: environments start on the one, with sandboxes in them, and everything else on the other."""
    ray = Path(os.environ.get("LEONARDO_UPSTREAM_VENV", PROJECT / ".venv-upstream")) / "bin/ray"
    if not ray.exists():
        pytest.skip(f"no Ray in {ray.parent} (make upstream-env)")
    archive = build_root_archive(tmp_path / "root.tar")
    bases = f"  tiny:1: {{registry: false, substitute: {{kind: archive, path: {archive}, reason: a test}}}}"
    path = tmp_path / "site.yaml"
    path.write_text(SITE.format(cache=tmp_path / "cache", shared=tmp_path, bases=bases))
    site = load_site(path)
    task = make_task("echo prepared > /here")
    store = AssetStore(site.cache / "assets", driver, site)
    store.build([task])
    plan = apart(str(ray.parent / "python"), "-c", DRIVER, store.prepared(task).name, ray=ray)
    store.close()
    there = {"LEONARDO_SITE": str(path), "LEONARDO_NODE_CACHE": "/tmp/node/layers", "LEONARDO_NODE_BUDGET": "1"}
    (state,) = wait_for(queue(replace(plan, environment={**plan.environment, **there})), ended, 280)
    (log,) = plan.folder.glob("slurm-*.log")
    said = log.read_text()
    assert (state.name, state.exit_code) == ("COMPLETED", 0), said[-3000:]
    assert "places [('node2', 'prepared'), ('node2', 'prepared'), ('node2', 'prepared')]" in said, said[-3000:]
    assert "others {'node1'}" in said
