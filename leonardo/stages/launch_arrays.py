"""Arrays of a site: prepared states, and evaluations of checkpoints, a part a task. Data in, a plan out."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from leonardo.cluster import Cluster
from leonardo.errors import InputError
from leonardo.jobs.plan import JobPlan, Resources
from leonardo.jobs.render import SHARD
from leonardo.site import Site
from leonardo.stages.launch import account_of, base_needs, gres_of
from leonardo.stages.launch_choices import Choices, cluster_of
from leonardo.stages.launch_trainer import LAYERS_SHARE
from leonardo.stages.policies import Checkpoint

RECORDS = "records"
"""Folder, in that of an evaluation's job, of the records."""

_MOST_CORES = 8


@dataclass(frozen=True)
class Evaluated:
    """What an array evaluates.

    Attributes:
        checkpoints: policies; each in ``parts`` parts, a task of the array each.
        rows: held-out tasks; ``selection`` are options that choose of them.
        attempts, seed, bounds, selection: as ``leonardo evaluate policies`` has them.
        gpus: a task; -1 for one where the nodes have any.
    """

    checkpoints: Sequence[Checkpoint]
    rows: Path
    parts: int
    attempts: int = 1
    seed: int = 20_000
    bounds: str = "desk"
    selection: tuple[str, ...] = ()
    gpus: int = -1


def plan_assets(site: Site, rows: Path, parts: int, folder: Path, choices: Choices) -> JobPlan:
    """An array that builds the prepared states of ``rows``, a part a task. Raises InputError."""
    cluster = cluster_of(site)
    asked = _resources(cluster, choices, gpus=0, minutes=120)
    command = (str(choices.python), "-m", "leonardo.cli", "assets", "build", str(rows), "--site", choices.site)
    command += ("--jobs", str(asked.cores), "--out", str(folder / "out"), "--shard", SHARD)
    if not cluster.network.compute:
        command += ("--offline",)
    return _plan(
        site,
        choices,
        asked,
        name="assets",
        title=f"assets: prepared states of {rows.name} in {parts} parts on {site.name}",
        command=command,
        folder=folder,
        needs={str(rows): "Bring the rows: make unbundle FROM=dir SITE=name"},
        array=parts,
        pins={"rows": rows.name},
    )


def plan_evaluation(site: Site, evaluated: Evaluated, folder: Path, choices: Choices) -> JobPlan:
    """An array that evaluates checkpoints on held-out rows, a part of a checkpoint's evaluation a task.

    Raises:
        InputError: what is asked does not fit the site.
    """
    cluster = cluster_of(site)
    pool = cluster.pool(choices.pool or next(iter(cluster.pools)))
    gpus = min(1, pool.gpus) if evaluated.gpus < 0 else evaluated.gpus
    asked = _resources(cluster, choices, gpus=gpus, minutes=240)
    names = [checkpoint.name for checkpoint in evaluated.checkpoints]
    command = [str(choices.python), "-m", "leonardo.cli", "evaluate", "policies", *map(str, evaluated.checkpoints)]
    command += ["--tasks", str(evaluated.rows), "--attempts", str(evaluated.attempts), "--bounds", evaluated.bounds]
    command += ["--seed", str(evaluated.seed), "--site", choices.site, *evaluated.selection]
    command += ["--parts", str(evaluated.parts), "--shard", SHARD]
    command += ["--out", str(folder / RECORDS), "--unpacked-gib", f"{LAYERS_SHARE * asked.tmp:g}"]
    needs = {str(evaluated.rows): "Bring the rows: make unbundle FROM=dir SITE=name", **base_needs(site)}
    for checkpoint in evaluated.checkpoints:
        needs[str(checkpoint.folder / "config.json")] = "Name the folder of a checkpoint"
    return _plan(
        site,
        choices,
        asked,
        name="evaluate",
        title=f"evaluate: {', '.join(names)} on {evaluated.rows.name} in {evaluated.parts} parts each on {site.name}",
        command=tuple(command),
        folder=folder,
        needs=needs,
        array=len(names) * evaluated.parts,
        pins={"rows": evaluated.rows.name, "checkpoints": names, "parts": evaluated.parts, "seed": evaluated.seed},
    )


def _resources(cluster: Cluster, choices: Choices, *, gpus: int, minutes: int) -> Resources:
    """A task of an array: a share of one node."""
    pool_name = choices.pool or next(iter(cluster.pools))
    pool = cluster.pool(pool_name)
    if gpus > pool.gpus:
        raise InputError(f"{gpus} GPUs a task are asked for, nodes of {pool_name} have {pool.gpus}", "Ask for fewer")
    minutes = choices.minutes or minutes
    return Resources(
        partition=pool.partition,
        nodes=1,
        minutes=minutes,
        cores=max(1, min(_MOST_CORES, pool.cores * gpus // pool.gpus if gpus else pool.cores)),
        memory=min(pool.memory * gpus / pool.gpus if gpus else pool.memory, 64.0 if gpus else 32.0),
        tmp=min(pool.tmp_size, 8.0),
        gpus=gpus,
        gres=tuple(gres_of(pool, gpus, 0.0)),
        quality=cluster.quality(pool_name, 1, minutes, choices.quality).name,
        account=account_of(cluster, choices),
        options=cluster.sbatch,
    )


def _plan(
    site: Site,
    choices: Choices,
    asked: Resources,
    *,
    name: str,
    title: str,
    command: tuple[str, ...],
    folder: Path,
    needs: dict[str, str],
    array: int,
    pins: dict[str, object],
) -> JobPlan:
    cluster = cluster_of(site)
    pool = cluster.pool(choices.pool or next(iter(cluster.pools)))
    return JobPlan(
        name=name,
        title=title,
        command=command,
        folder=folder,
        project=choices.project,
        python=choices.python,
        scratch=pool.tmp,
        resources=asked,
        set_up=cluster.set_up,
        environment={**cluster.environment, **site.variables},
        needs=needs,
        array=array,
        grace=cluster.grace,
        pins={"site": site.name, **pins},
    )
