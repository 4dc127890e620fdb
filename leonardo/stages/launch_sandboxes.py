"""Nodes of another kind beside a trainer's, for sandboxes alone: a job of two kinds of nodes."""

from dataclasses import replace

from leonardo.cluster import Cluster, Pool
from leonardo.errors import InputError
from leonardo.hooks.cores import RESERVED
from leonardo.hooks.placement import PLACEMENT_VARIABLE
from leonardo.jobs.plan import JobPlan, Resources
from leonardo.jobs.settings import JobSettings, SandboxNodes
from leonardo.stages.launch_choices import Choices


def asked_for(job: JobSettings, choices: Choices) -> SandboxNodes | None:
    """The nodes for sandboxes that a stage or a person wants; None for none. Raises InputError."""
    named = choices.sandbox_pool or (job.sandboxes.pool if job.sandboxes else "")
    if not named:
        if choices.sandbox_nodes:
            raise InputError(f"{choices.sandbox_nodes} nodes for sandboxes of no kind", "Name it: --sandbox-pool cpu")
        return None
    return SandboxNodes(pool=named, nodes=choices.sandbox_nodes or (job.sandboxes.nodes if job.sandboxes else 1))


def with_sandbox_nodes(plan: JobPlan, wanted: SandboxNodes, cluster: Cluster, main: Pool) -> JobPlan:
    """``plan`` with nodes for sandboxes beside its own, which then keep no cores from sandboxes.

    Raises:
        InputError: no QOS takes them, or the two kinds have their node-local folders at different places.
    """
    pool = cluster.pool(wanted.pool)
    if pool.tmp != main.tmp:
        raise InputError(
            f"nodes of {wanted.pool} have their local folder at {pool.tmp}, those of the trainer at {main.tmp}",
            "Ray keeps its sockets at one place on all nodes: give both pools of the site the same tmp",
        )
    asked = plan.resources
    gres = (pool.tmp_gres.format(gib=round(asked.tmp)),) if asked.tmp > pool.tmp_size and pool.tmp_gres else ()
    sandboxes = Resources(
        partition=pool.partition,
        quality=cluster.quality(wanted.pool, wanted.nodes, asked.minutes).name,
        account=asked.account,
        nodes=wanted.nodes,
        minutes=asked.minutes,
        cores=pool.cores,
        memory=pool.memory,
        tmp=asked.tmp,
        gres=gres,
        exclusive=True,
        options=asked.options,
    )
    return replace(
        plan,
        title=f"{plan.title}; sandboxes on {wanted.nodes} nodes of {wanted.pool}",
        resources=replace(asked, reserved_cores=0),
        sandboxes=sandboxes,
        environment={**plan.environment, PLACEMENT_VARIABLE: "1", RESERVED: "0"},
        pins={**plan.pins, "sandbox_nodes": f"{wanted.nodes} {wanted.pool}"},
    )
