"""A stage as a job of a site: which command, on which nodes, with what beside it. Data in, a plan out; nothing runs."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from leonardo.cluster import ACCOUNT_VARIABLE, Cluster, Pool
from leonardo.errors import InputError
from leonardo.jobs.plan import JobPlan, Resources
from leonardo.jobs.settings import Shape, shape_for
from leonardo.site import ArchiveSubstitute, Site
from leonardo.stages.definition import Model, Stage
from leonardo.stages.launch_choices import Choices, cluster_of
from leonardo.stages.launch_sandboxes import asked_for, with_sandbox_nodes
from leonardo.stages.launch_trainer import upstream_needs, with_trainer


def plan_stage(stage: Stage, model: Model, site: Site, folder: Path, choices: Choices) -> JobPlan:
    """The job of a stage.

    Args:
        stage, model, site: as read.
        folder: of the run.
        choices: a person's.

    Raises:
        InputError: they do not fit each other; says which value of which file.
    """
    cluster = cluster_of(site)
    reference = bool(stage.rows)
    if reference and choices.engine != "upstream":
        raise InputError(f"stage {stage.name} trains on {stage.rows}", "Take --engine upstream")
    pool_name = choices.pool or stage.job.pool or next(iter(cluster.pools))
    pool = cluster.pool(pool_name)
    shape = None
    if choices.engine == "upstream":
        shape = shape_for(model.shapes, choices.shape or pool.gpu, model.name)
    asked = _resources(stage, cluster, pool_name, shape, choices)
    name = f"{stage.name}-{model.name}-{choices.engine}" if reference else f"{stage.name}-{choices.engine}"
    base = JobPlan(
        name=name,
        title=f"{stage.name}: {model.name} with the {choices.engine} engine on {site.name}, seed {choices.seed}",
        command=(),
        folder=folder,
        project=choices.project,
        python=choices.python,
        scratch=pool.tmp,
        resources=asked,
        set_up=cluster.set_up,
        environment={
            **cluster.environment,
            **site.variables,
            "LEONARDO_RESERVED_CORES": str(asked.reserved_cores),
        },
        needs={str(choices.python): "Make the environment: make setup", **base_needs(site)},
        restarts=stage.job.restarts,
        # of a job that a person made short, no more than a quarter
        grace=max(cluster.grace, min(stage.job.grace, asked.minutes * 60 // 4)),
        pins={"stage": stage.name, "model": model.name, "engine": choices.engine, "site": site.name}
        | {"seed": choices.seed},
    )
    wanted = asked_for(stage.job, choices)
    if reference:
        assert shape is not None
        if wanted is not None:
            base = with_sandbox_nodes(base, wanted, cluster, pool)
        return with_trainer(base, stage, model, site, shape, choices)
    if wanted is not None:
        raise InputError(
            f"stage {stage.name} runs on one node, its sandboxes, too", "Nodes for sandboxes are for stages with rows"
        )
    return _with_stage(base, stage, model, choices)


def _resources(stage: Stage, cluster: Cluster, pool_name: str, shape: Shape | None, choices: Choices) -> Resources:
    pool, job = cluster.pool(pool_name), stage.job
    minutes = choices.minutes or job.minutes
    nodes = shape.nodes if shape else 1
    quality = cluster.quality(pool_name, nodes, minutes, choices.quality).name
    whole = shape is not None and shape.gpus >= shape.nodes * pool.gpus
    gpus = 0 if shape is None else pool.gpus if whole else -(-shape.gpus // shape.nodes)
    cores = job.cores if shape is None else pool.cores if whole else pool.cores * gpus // max(1, pool.gpus)
    memory = job.memory if shape is None else pool.memory if whole else pool.memory * gpus / max(1, pool.gpus)
    return Resources(
        partition=pool.partition,
        quality=quality,
        account=account_of(cluster, choices),
        nodes=nodes,
        minutes=minutes,
        cores=cores,
        memory=round(memory, 3),
        tmp=job.tmp,
        gpus=gpus,
        gres=tuple(gres_of(pool, gpus, job.tmp)),
        exclusive=whole,
        reserved_cores=min(pool.reserved_cores, cores - 1) if shape else 0,
        options=cluster.sbatch,
    )


def gres_of(pool: Pool, gpus: int, tmp: float) -> Sequence[str]:
    """How a node's GPUs and node-local space are asked for."""
    wanted = [pool.gres.format(gpus=gpus)] if gpus else []
    if tmp > pool.tmp_size and pool.tmp_gres:
        wanted.append(pool.tmp_gres.format(gib=round(tmp)))
    return wanted


def account_of(cluster: Cluster, choices: Choices) -> str:
    """Whom the time is charged to; "" where nobody is named."""
    named = choices.account or os.environ.get(ACCOUNT_VARIABLE) or cluster.account
    return "" if named.startswith("$") else named


def _with_stage(plan: JobPlan, stage: Stage, model: Model, choices: Choices) -> JobPlan:
    """The stage as ``leonardo stage run`` does it on one node."""
    command = [str(plan.python), "-m", "leonardo.cli", "stage", "run", choices.stage or stage.name]
    command += ["--engine", choices.engine, "--seed", str(choices.seed), "--site", choices.site]
    if choices.model:
        command += ["--model", choices.model]
    if choices.force:
        command += ["--force", choices.force]
    command += ["--runs", str(plan.folder.parent), "--out", str(plan.folder / "out")]
    if choices.engine == "desk":
        return replace(plan, command=tuple(command))
    command += ["--upstream", str(choices.upstream), "--upstream-python", str(choices.upstream_python)]
    needs = {**plan.needs, **upstream_needs(choices)}
    return replace(plan, command=tuple(command), needs=needs)


def base_needs(site: Site) -> dict[str, str]:
    """Base images are made where there is a network; what an archive stands for needs only the archive."""
    archives = [source.substitute for source in site.bases.values()]
    if archives and all(isinstance(substitute, ArchiveSubstitute) for substitute in archives):
        return {str(archive.path): "It is the site's base image" for archive in archives}
    return {
        str(
            site.cache / "assets" / "bases"
        ): "Make the prepared states, or bring them: make unbundle FROM=dir SITE=name"
    }
