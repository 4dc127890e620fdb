"""Ray by its own means over the nodes of a job, with the Ray of upstream's environment."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from leonardo.jobs.collect import collect
from leonardo.jobs.plan import JobPlan
from tests.slurm.conftest import PROJECT, ended, queue, wait_for

pytestmark = pytest.mark.slow

DRIVER = """
import ray, sys
ray.init()
@ray.remote(num_gpus=4, scheduling_strategy="SPREAD")
def where():
    import os, time
    time.sleep(2)
    return os.uname().nodename
nodes = sorted(ray.get([where.remote(), where.remote()]))
print("nodes", nodes, "cores", ray.cluster_resources()["CPU"], "gpus", ray.cluster_resources()["GPU"], flush=True)
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def ray() -> Path:
    """The program; skips where upstream's environment is not made."""
    path = Path(os.environ.get("LEONARDO_UPSTREAM_VENV", PROJECT / ".venv-upstream")) / "bin/ray"
    if not path.exists():
        pytest.skip(f"no Ray in {path.parent} (make upstream-env)")
    return path


@pytest.mark.parametrize(("nodes", "code"), [(1, 0), (2, 7)])
def test_exit_code_over_nodes(make_plan: Callable[..., JobPlan], ray: Path, nodes: int, code: int) -> None:
    """The driver sees every node's GPUs and the cores that are not reserved; its exit code is the job's."""
    plan = make_plan(str(ray.parent / "python"), "-c", DRIVER, str(code), ray=ray)
    asked = replace(plan.resources, nodes=nodes, cores=8, gpus=4, gres=("gpu:4",), memory=12.0, reserved_cores=2)
    plan = replace(plan, resources=asked)
    (state,) = wait_for(queue(plan), ended, 280)
    (log,) = plan.folder.glob("slurm-*.log")
    said = log.read_text()
    assert (state.name, state.exit_code) == ("COMPLETED" if code == 0 else "FAILED", code), said[-3000:]
    names = [f"node{number}" for number in range(1, nodes + 1)]
    wanted = f"cores {6.0 * nodes} gpus {4.0 * nodes}"
    assert wanted in said, said[-3000:]
    if nodes == 2:
        assert f"nodes {names}" in said
    assert collect(plan.folder, plan.folder.parent / "ledger.jsonl")["figures"]["exit_code"] == code
