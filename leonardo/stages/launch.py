"""A stage as a job of a site: which command, on which nodes, with what beside it. Data in, a plan out; nothing runs."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from leonardo.cluster import ACCOUNT_VARIABLE, Cluster, Pool
from leonardo.engine.upstream.dataset import ENVIRONMENT
from leonardo.engine.upstream.flags import TRAINER, command_line
from leonardo.errors import InputError
from leonardo.jobs.check import Trainer
from leonardo.jobs.plan import JobPlan, Resources
from leonardo.jobs.render import SHARD
from leonardo.jobs.settings import Shape, shape_for
from leonardo.rollout.episodes import EpisodeSettings
from leonardo.site import CACHE_VARIABLE, NODE_CACHE_VARIABLE, ArchiveSubstitute, Site
from leonardo.stages.definition import Model, Stage

PROJECT = Path(__file__).parents[2]
Engine = Literal["desk", "upstream"]

_LAYERS_SHARE = 0.75
"""Of a node's space in ``job.tmp``, for unpacked layers; the rest is for sockets, caches and temporary files."""


@dataclass(frozen=True)
class Choices:
    """What a person chooses beside stage and site; "" and 0 leave it to the files.

    Attributes:
        engine, seed, account, quality, pool, minutes, shape: as in the files.
        site, stage: the names or files that the job itself reads; the stage's own name if "".
        project, python: the checkout and its environment, as the nodes see them.
        upstream_python: of upstream's environment.
        tree: upstream's checkout.
    """

    engine: Engine = "desk"
    seed: int = 1
    account: str = ""
    quality: str = ""
    pool: str = ""
    minutes: int = 0
    shape: str = ""
    site: str = "leonardo"
    stage: str = ""
    project: Path = PROJECT
    python: Path = Path(sys.executable)
    upstream_python: Path = PROJECT / ".venv-upstream/bin/python"
    tree: Path = PROJECT / "upstream"


def cluster_of(site: Site) -> Cluster:
    """The site's cluster. Raises InputError where it has none."""
    if site.cluster is None:
        raise InputError(f"site {site.name} has no cluster", "Run the stage here: make smoke; or take --site leonardo")
    return site.cluster


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
            CACHE_VARIABLE: str(site.cache),
            **({NODE_CACHE_VARIABLE: str(site.node_cache)} if site.node_cache else {}),
            "LEONARDO_RESERVED_CORES": str(asked.reserved_cores),
        },
        needs={str(choices.python): "Make the environment: make setup", **_base_needs(site)},
        restarts=stage.job.restarts,
        grace=cluster.grace,
        pins={"stage": stage.name, "model": model.name, "engine": choices.engine, "site": site.name}
        | {"seed": choices.seed},
    )
    if reference:
        assert shape is not None
        return _with_trainer(base, stage, model, site, shape, choices)
    return _with_stage(base, stage, model, choices)


def plan_assets(site: Site, rows: Path, parts: int, folder: Path, choices: Choices) -> JobPlan:
    """An array that builds the prepared states of ``rows``, a part a task. Raises InputError."""
    cluster = cluster_of(site)
    pool_name = choices.pool or next(iter(cluster.pools))
    pool = cluster.pool(pool_name)
    minutes = choices.minutes or 120
    cores = min(pool.cores, 8)
    quality = choices.quality or cluster.quality(pool_name, 1, minutes).name
    asked = Resources(
        partition=pool.partition,
        nodes=1,
        minutes=minutes,
        cores=cores,
        memory=min(pool.memory, 32.0),
        tmp=min(pool.tmp_size, 8.0),
        quality=quality,
        account=_account(cluster, choices),
        options=cluster.sbatch,
    )
    command = (str(choices.python), "-m", "leonardo.cli", "assets", "build", str(rows), "--site", choices.site)
    command += ("--jobs", str(cores), "--out", str(folder / "out"), "--shard", SHARD)
    if not cluster.network.compute:
        command += ("--offline",)
    return JobPlan(
        name="assets",
        title=f"assets: prepared states of {rows.name} in {parts} parts on {site.name}",
        command=command,
        folder=folder,
        project=choices.project,
        python=choices.python,
        scratch=pool.tmp,
        resources=asked,
        set_up=cluster.set_up,
        environment={**cluster.environment, CACHE_VARIABLE: str(site.cache)},
        needs={str(rows): "Bring the rows: make unbundle"},
        array=parts,
        grace=cluster.grace,
        pins={"site": site.name, "rows": rows.name},
    )


def trainer_of(
    stage: Stage, model: Model, site: Site, pool: str, plan: JobPlan, choices: Choices, wheels: Path | None = None
) -> Trainer:
    """What a check has to know of a job that runs upstream's trainer."""
    cluster = cluster_of(site)
    shape = shape_for(model.shapes, choices.shape or cluster.pool(pool).gpu, model.name)
    folder = plan.pins.get("model_folder")
    return Trainer(
        python=choices.upstream_python,
        tree=choices.tree,
        patches=choices.project / "patches",
        lock=choices.project / "launch/environments/upstream-cuda.txt",
        shape=shape,
        wheels=wheels or cluster.roots.shared / "wheels",
        flags={**site.upstream.flags, **model.upstream, **stage.upstream, **shape.all_flags()},
        parameters=model.parameters,
        model=Path(folder) if folder else None,
        name=model.name,
        revision=model.revision,
        commit=stage.pins.get("upstream", ""),
    )


def _resources(stage: Stage, cluster: Cluster, pool_name: str, shape: Shape | None, choices: Choices) -> Resources:
    pool, job = cluster.pool(pool_name), stage.job
    minutes = choices.minutes or job.minutes
    nodes = shape.nodes if shape else 1
    quality = choices.quality or cluster.quality(pool_name, nodes, minutes).name
    whole = shape is not None and shape.gpus >= shape.nodes * pool.gpus
    gpus = 0 if shape is None else pool.gpus if whole else -(-shape.gpus // shape.nodes)
    cores = job.cores if shape is None else pool.cores if whole else pool.cores * gpus // max(1, pool.gpus)
    memory = job.memory if shape is None else pool.memory if whole else pool.memory * gpus / max(1, pool.gpus)
    return Resources(
        partition=pool.partition,
        quality=quality,
        account=_account(cluster, choices),
        nodes=nodes,
        minutes=minutes,
        cores=cores,
        memory=round(memory, 3),
        tmp=job.tmp,
        gpus=gpus,
        gres=tuple(_gres(pool, gpus, job.tmp)),
        exclusive=whole,
        reserved_cores=min(pool.reserved_cores, cores - 1) if shape else 0,
        options=cluster.sbatch,
    )


def _gres(pool: Pool, gpus: int, tmp: float) -> Sequence[str]:
    wanted = [pool.gres.format(gpus=gpus)] if gpus else []
    if tmp > pool.tmp_size and pool.tmp_gres:
        wanted.append(pool.tmp_gres.format(gib=round(tmp)))
    return wanted


def _account(cluster: Cluster, choices: Choices) -> str:
    named = choices.account or os.environ.get(ACCOUNT_VARIABLE) or cluster.account
    return "" if named.startswith("$") else named


def _with_stage(plan: JobPlan, stage: Stage, model: Model, choices: Choices) -> JobPlan:
    """The stage as ``leonardo stage run`` does it on one node."""
    command = [str(plan.python), "-m", "leonardo.cli", "stage", "run", choices.stage or stage.name]
    command += ["--engine", choices.engine, "--seed", str(choices.seed), "--site", choices.site]
    if model.name != stage.model:
        command += ["--model", model.name]
    command += ["--runs", str(plan.folder.parent), "--out", str(plan.folder / "out")]
    if choices.engine == "desk":
        return replace(plan, command=tuple(command))
    command += ["--upstream", str(choices.tree), "--upstream-python", str(choices.upstream_python)]
    needs = {**plan.needs, **_upstream_needs(choices)}
    return replace(plan, command=tuple(command), needs=needs)


def _with_trainer(plan: JobPlan, stage: Stage, model: Model, site: Site, shape: Shape, choices: Choices) -> JobPlan:
    """Upstream's trainer itself, as the driver of a Ray cluster over the job's nodes."""
    cluster = cluster_of(site)
    shared = cluster.roots.shared
    weights = shared / "models" / model.start.rpartition("/")[2]
    data = shared / (stage.rows or "data")
    own = _own_flags(weights, data, plan.folder, stage.episode_settings(), choices.seed)
    flags = {
        **site.upstream.flags,
        **model.upstream,
        **stage.upstream,
        **shape.all_flags(),
        **own,
        "tool_parser_type": model.tool_parser,
    }
    trainer = [str(choices.upstream_python), str(choices.tree / TRAINER), *command_line(flags, frozenset(flags))]
    environment = {
        **site.upstream.environment,
        **plan.environment,
        "HF_HOME": str(plan.folder / "hub"),
        "LEONARDO_NODE_BUDGET": f"{_LAYERS_SHARE * plan.resources.tmp:g}",
        "LEONARDO_RUN": str(plan.folder),
        "LEONARDO_SITE": choices.site,
        "PYTHONPATH": f"{(choices.tree / TRAINER).parent.parent}:{choices.project}",
    }
    needs = {
        **plan.needs,
        **_upstream_needs(choices),
        str(weights / "config.json"): "Bring the model: make unbundle",
        str(data / "dataset" / "train.jsonl"): "Write it from the prepared states: leonardo launch data",
        str(data / "task-data"): "Write it from the prepared states: leonardo launch data",
    }
    return replace(
        plan,
        command=tuple(trainer),
        ray=choices.upstream_python.parent / "ray",
        environment=environment,
        needs=needs,
        pins={**plan.pins, "model_revision": model.revision, "model_folder": str(weights)},
    )


def _base_needs(site: Site) -> dict[str, str]:
    """Base images are made where there is a network; what an archive stands for needs only the archive."""
    archives = [source.substitute for source in site.bases.values()]
    if archives and all(isinstance(substitute, ArchiveSubstitute) for substitute in archives):
        return {str(archive.path): "It is the site's base image" for archive in archives}
    return {str(site.cache / "assets" / "bases"): "Make the prepared states, or bring them: make unbundle"}


def _upstream_needs(choices: Choices) -> dict[str, str]:
    return {
        str(choices.upstream_python): "Make upstream's environment: make upstream-env WHEELS=...",
        str(choices.tree / TRAINER): "Put upstream there: make apply-patches, or make unbundle",
    }


def _own_flags(model: Path, data: Path, folder: Path, episode: EpisodeSettings, seed: int) -> Mapping[str, Any]:
    """What the launcher decides: where everything is."""
    return {
        "model_name_or_path": str(model),
        "dataset_mixer_list": [str(data / "dataset"), "1.0"],
        "dataset_mixer_list_splits": ["train"],
        "tools": [ENVIRONMENT],
        "tool_configs": [
            {
                "backend": "prepared",
                "task_data_dir": str(data / "task-data"),
                "timeout": round(episode.command_timeout),
                "test_timeout": round(episode.verifier_timeout),
            }
        ],
        "system_prompt_override_file": str(data / "system-prompt.txt"),
        "output_dir": str(folder / "checkpoint"),
        "checkpoint_state_dir": str(folder / "state"),
        "rollouts_save_path": str(folder / "rollouts"),
        "seed": seed,
        "exp_name": "run",
        "max_steps": episode.steps,
        "per_turn_max_tokens": episode.turn_tokens,
        "push_to_hub": False,
        "with_tracking": False,
        "try_auto_save_to_beaker": False,
        "try_launch_beaker_eval_jobs_on_weka": False,
    }
