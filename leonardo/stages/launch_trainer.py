"""Upstream's trainer itself as a job: the driver of a Ray cluster over the job's nodes."""

import json
from dataclasses import replace
from pathlib import Path

from leonardo.engine.upstream.dataset import dataset_in
from leonardo.engine.upstream.flags import TRAINER, command_line
from leonardo.engine.upstream.own import PARSERS, own_environment, own_flags, require_not_own, saves_state
from leonardo.errors import InputError
from leonardo.hooks.sandbox import BUDGET_VARIABLE, SITE_VARIABLE
from leonardo.jobs.check import Trainer
from leonardo.jobs.plan import JobPlan
from leonardo.jobs.settings import Shape, shape_for
from leonardo.site import Site
from leonardo.stages.definition import Bounds, Model, Stage
from leonardo.stages.launch_choices import Choices, cluster_of

LAYERS_SHARE = 0.75
"""Of a node's space in ``job.tmp``, for unpacked layers; the rest is for sockets, caches and temporary files."""

ENDING = 90
"""Seconds of a job's grace for the end by force: TERM, what the nodes then remove, and the queue."""

_PLACES_OF_A_LEARNER, _OTHER_PLACES = 10, 8
"""What upstream asks of Ray for a learner GPU, in CPUs, however many a node has; and for its actors beside them."""

_BY_THE_JOB = ("node-ip-address", "num-gpus", "num-cpus", "include-dashboard")
"""Options of ``ray start`` in a site that hold on the desk; in a job the job knows."""


def with_trainer(plan: JobPlan, stage: Stage, model: Model, site: Site, shape: Shape, choices: Choices) -> JobPlan:
    """``plan`` with upstream's trainer as its main step. Raises InputError for a flag that is not the files' to set."""
    shared = cluster_of(site).roots.shared
    weights = site.models / model.folder
    dataset = dataset_in(shared / (stage.rows or "data"))
    parser, parsers = model.parser()
    asked = {**site.upstream.flags, **model.upstream, **stage.upstream, **shape.all_flags()}
    require_not_own(asked)
    if stage.bounds != Bounds() or stage.early_stop:
        raise InputError(
            f"stage {stage.name} has bounds or early_stop, which a job of upstream's trainer does not look at",
            "Remove them: job.minutes and job.restarts bound it",
        )
    episode = stage.with_model(model).episode_settings()
    own = own_flags(weights, dataset, plan.folder, episode, choices.seed, parser, state=saves_state(asked))
    flags = {**asked, **own}
    trainer = [str(choices.upstream_python), str(choices.upstream / TRAINER), *command_line(flags, frozenset(flags))]
    compiled = site.cache / "upstream"
    environment = {
        **own_environment(choices.upstream, choices.project, plan.folder, compiled, site.upstream.environment),
        **plan.environment,
        BUDGET_VARIABLE: f"{LAYERS_SHARE * (plan.sandboxes or plan.resources).tmp:g}",
        SITE_VARIABLE: choices.site,
    }
    options = tuple(f"--{name}={value}" for name, value in site.upstream.ray.items() if name not in _BY_THE_JOB)
    needs = {
        **plan.needs,
        **upstream_needs(choices),
        str(weights / "config.json"): "Bring the model: make unbundle FROM=dir SITE=name",
        str(dataset.folder / "train.jsonl"): "Write it from the prepared states: leonardo launch data",
        str(dataset.task_data): "Write it from the prepared states: leonardo launch data",
    }
    return replace(
        plan,
        command=tuple(trainer),
        ray=choices.upstream_python.parent / "ray",
        unpacked=dataset.folder / "train.jsonl" if site.node_cache else None,
        ray_places=max(
            plan.resources.cores - plan.resources.reserved_cores,
            _PLACES_OF_A_LEARNER * max(shape.learners) + plan.resources.gpus + _OTHER_PLACES,
        ),
        ray_options=options,
        environment=environment,
        needs=needs,
        start_within=stage.start_within,
        stall_after=stage.stall_after,
        patience=max(plan.grace - ENDING, plan.grace // 2) if saves_state(asked) else 0,
        files={PARSERS: json.dumps(parsers, indent=2) + "\n"},
        pins={**plan.pins, "model_revision": model.revision, "model_folder": str(weights)},
    )


def trainer_of(
    stage: Stage, model: Model, site: Site, pool: str, plan: JobPlan, choices: Choices, wheels: Path | None = None
) -> Trainer:
    """What a check has to know of a job that runs upstream's trainer."""
    cluster = cluster_of(site)
    shape = shape_for(model.shapes, choices.shape or cluster.pool(pool).gpu, model.name)
    folder = plan.pins.get("model_folder")
    variant = "cpu" if site.upstream.environment.get("DS_ACCELERATOR") == "cpu" else "cuda"
    return Trainer(
        python=choices.upstream_python,
        tree=choices.upstream,
        patches=choices.project / "patches",
        lock=choices.project / f"launch/environments/upstream-{variant}.txt",
        shape=shape,
        wheels=wheels or cluster.roots.shared / "wheels",
        flags={**site.upstream.flags, **model.upstream, **stage.upstream, **shape.all_flags()},
        parameters=model.parameters,
        model=Path(folder) if folder else None,
        name=model.name,
        start=model.start,
        revision=model.revision,
        commit=stage.pins.get("upstream", ""),
    )


def upstream_needs(choices: Choices) -> dict[str, str]:
    """What has to be there for upstream's trainer, with what to do where it is not."""
    return {
        str(choices.upstream_python): "Make upstream's environment: make upstream-env WHEELS=...",
        str(choices.upstream / TRAINER): "Put upstream there: make apply-patches, or make unbundle FROM=dir SITE=name",
    }
