"""Nodes for sandboxes alone: what is asked of the scheduler, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

from leonardo.cluster import Pool
from leonardo.errors import InputError
from leonardo.jobs.arithmetic import memory_findings
from leonardo.jobs.plan import JobPlan
from leonardo.jobs.settings import JobSettings, SandboxNodes
from leonardo.site import Site, load_site
from leonardo.stages.definition import load_model, load_stage
from leonardo.stages.launch import plan_stage
from leonardo.stages.launch_choices import Choices
from leonardo.stages.launch_sandboxes import asked_for
from tests.jobs.shipped import VARIABLES

APART = Choices(engine="upstream", sandbox_pool="cpu", sandbox_nodes=2)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    """The shipped cluster."""
    monkeypatch.delenv("LEONARDO_CACHE", raising=False)
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)
    return load_site("leonardo")


def planned(site: Site, choices: Choices, stage: str = "reproduce", model: str = "qwen35_9b") -> JobPlan:
    return plan_stage(load_stage(stage), load_model(model), site, Path("/runs/one"), choices)


def test_both_kinds_of_nodes(site: Site) -> None:
    plain, apart = planned(site, replace(APART, sandbox_pool="", sandbox_nodes=0)), planned(site, APART)
    assert plain.sandboxes is None and "LEONARDO_SANDBOX_NODES" not in plain.environment
    assert (apart.sandboxes.nodes, apart.sandboxes.partition, apart.sandboxes.gpus) == (2, "dcgp_usr_prod", 0)
    assert (apart.sandboxes.minutes, apart.sandboxes.account) == (apart.resources.minutes, "project")
    assert apart.environment["LEONARDO_RESERVED_CORES"] == "0" and apart.resources.reserved_cores == 0
    assert apart.resources.nodes == plain.resources.nodes


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        (replace(APART, sandbox_pool=""), "2 nodes for sandboxes of no kind"),
        (replace(APART, sandbox_pool="moon"), "the site has no pool moon"),
        (replace(APART, sandbox_nodes=17), "no QOS takes 17 cpu nodes"),
    ],
)
def test_what_does_not_fit(site: Site, choices: Choices, says: str) -> None:
    with pytest.raises(InputError, match=says):
        planned(site, choices)


def test_stages_on_one_node_are_refused(site: Site) -> None:
    with pytest.raises(InputError, match="smoke runs on one node"):
        planned(site, APART, "smoke", "desk")


def test_local_folders_at_two_places_are_refused(site: Site) -> None:
    pools = site.cluster.pools
    moved = pools | {"cpu": pools["cpu"].model_copy(update={"tmp": Path("/local")})}
    with pytest.raises(InputError, match="at /local, those of the trainer at /tmp"):
        planned(site.model_copy(update={"cluster": site.cluster.model_copy(update={"pools": moved})}), APART)


def test_a_person_goes_before_the_stage() -> None:
    job = JobSettings(sandboxes=SandboxNodes(pool="cpu", nodes=3))
    assert asked_for(job, Choices()) == SandboxNodes(pool="cpu", nodes=3)
    assert asked_for(job, Choices(sandbox_nodes=5)) == SandboxNodes(pool="cpu", nodes=5)
    assert asked_for(JobSettings(), Choices()) is None


def test_memory_is_asked_of_the_nodes_that_sandboxes_are_on(site: Site) -> None:
    """The trainer's nodes are relieved of them, theirs are held to what they have."""
    plan = planned(site, APART)
    shape = load_model("qwen35_9b").shapes["A100-64GB"]
    gpu, cpu = site.cluster.pools["gpu"], site.cluster.pools["cpu"]

    def found(sandboxes: int, kind: Pool = cpu) -> list[str]:
        flags = {"pool_size": sandboxes}
        return [
            finding.what
            for finding in memory_findings(shape, gpu, 0.0, flags, plan.resources, (plan.sandboxes, kind))
            if finding.id == "nodes.memory"
        ]

    assert found(int(2 * 480 / shape.sandbox_memory)) == []
    (said,) = found(int(2 * 490 / shape.sandbox_memory))
    assert said.startswith("a node for sandboxes needs about 490 GiB (trainer 0")
    assert not cpu.tmp_in_memory and "tmp in memory" not in said
    (said,) = found(int(2 * 490 / shape.sandbox_memory), cpu.model_copy(update={"tmp_in_memory": True}))
    assert f"tmp in memory {plan.sandboxes.tmp:g}" in said
