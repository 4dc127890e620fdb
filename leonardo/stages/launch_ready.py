"""From a person's options to jobs that could be submitted: planned, rendered, checked, queued."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import typer

from leonardo.errors import InputError
from leonardo.jobs import slurm
from leonardo.jobs.check import Trainer
from leonardo.jobs.check import check as check_plan
from leonardo.jobs.findings import Finding
from leonardo.jobs.folder import name_folder, note_job, release, write_folder
from leonardo.jobs.plan import JobPlan
from leonardo.jobs.render import render
from leonardo.jobs.settings import shape_for
from leonardo.site import Site, load_site
from leonardo.stages.asked import Asked, UpstreamPlace
from leonardo.stages.definition import load_model, load_stage
from leonardo.stages.launch import plan_stage
from leonardo.stages.launch_basis import Ground, finding_of, ground_of, stages_of_jobs
from leonardo.stages.launch_choices import Choices, cluster_of
from leonardo.stages.launch_note import note_stage
from leonardo.stages.launch_options import QueueOptions
from leonardo.stages.launch_trainer import trainer_of
from leonardo.stages.start import desk_findings, start_findings


@dataclass(frozen=True)
class Ready:
    """A job that could be submitted.

    Attributes:
        asked: the stage that it runs; None for a job that runs none.
        ground: what that stage stands on.
    """

    plan: JobPlan
    script: str
    site: Site
    pool: str
    trainer: Trainer | None = None
    asked: Asked | None = None
    ground: Ground = field(default_factory=Ground)


def choices_of(options: QueueOptions) -> Choices:
    """A person's options. Raises InputError for what would not do in a script."""
    choices = Choices(**vars(options))
    if choices.engine not in ("", "desk", "upstream"):
        raise InputError(f"no engine {choices.engine}", "Engines: desk, upstream")
    for option, value in {"account": choices.account, "qos": choices.quality, "pool": choices.pool}.items():
        if not re.fullmatch(r"[\w.-]*", value, re.ASCII):  # it goes into the job's script
            raise InputError(f"--{option} {value!r} is no name", "Letters, digits, and the signs _ . -")
    return replace(
        choices,
        site=_place(choices.site),
        model=_place(choices.model),
        upstream=choices.upstream.absolute(),
        upstream_python=choices.upstream_python.absolute(),  # not resolved: a link makes a Python an environment's
    )


def ready_stages(
    stages: Sequence[str],
    choices: Choices,
    runs: Path | None,
    folder: Path | None,
    wheels: Path | None,
    after: Sequence[str] = (),
    *,
    look: bool = True,
) -> Iterator[Ready]:
    """Read the files and plan each stage.

    Args:
        after: ids of queued jobs that the first waits for.
        look: whether to look into the ledger.

    Raises:
        InputError: before the first plan for what is wrong with the chain or a folder, else for what is in the files.
    """
    if folder is not None and len(stages) > 1:
        raise InputError("--folder is for one stage", "Leave it out for a chain")
    require_folder("--runs", runs)
    require_folder("--folder", folder)
    site = load_site(choices.site)
    cluster = cluster_of(site)
    chain = {name: load_stage(name) for name in stages}
    called = [chain[name].name for name in stages]
    if twice := [name for name in called if called.count(name) > 1]:
        raise InputError(f"stage {twice[0]} is there twice", "Name each stage of a chain once")
    for number, (name, stage) in enumerate(zip(called, chain.values(), strict=True)):
        if stage.after in called[number:]:
            raise InputError(f"{name} is named before {stage.after}, which opens it", f"Name {stage.after} first")
    before: list[tuple[str, str]] = []  # stages of this chain, with their engines
    for name, stage in chain.items():
        model = load_model(choices.model or stage.model)
        if choices.shape:
            shape_for(model.shapes, choices.shape, model.name)
        own = replace(choices, engine=choices.engine or ("upstream" if stage.rows else "desk"), stage=_place(name))
        place = absolute(folder or name_folder(runs or cluster.roots.shared / "runs", stage.name))
        plan = plan_stage(stage, model, site, place, own)
        pool = own.pool or stage.job.pool or next(iter(cluster.pools))
        trainer = trainer_of(stage, model, site, pool, plan, own, wheels) if own.engine == "upstream" else None
        asked = Asked(
            own.stage,
            own.engine,  # type: ignore[arg-type]
            own.seed,
            own.site,
            "auto",
            UpstreamPlace(own.upstream, own.upstream_python),
            model=own.model,
            force=own.force,
        )
        ground = Ground()
        if look:
            chained = [before_it for before_it, engine in before if engine == own.engine]
            waited_for = [*chained, *stages_of_jobs(place.parent, after, own.engine)]
            ground = ground_of(asked, place.parent, waited_for, own.force)
        yield Ready(plan, render(plan), site, pool, trainer, asked, ground)
        before.append((stage.name, own.engine))


def require_folder(option: str, path: Path | None) -> None:
    """It is a folder, or may become one; whether it can be written to is for ``check``, there. Raises InputError."""
    if path is None:
        return
    there = next(place for place in (path.absolute(), *path.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        raise InputError(f"{option}: {there} is no folder", "Name another")


def absolute(path: Path) -> Path:
    """The same with the working directory before it; as it is where it begins with a variable that is not set here."""
    return path if str(path).startswith("$") else path.absolute()


def unset_note(ready: Ready) -> str:
    """A line on what this shell lacks for the script: variables, and whom the time is charged to; "" for nothing."""
    parts = []
    if unset := unset_variables(ready):
        parts.append(f"not set here, they stand in the script by name: {', '.join(unset)}")
    if cluster_of(ready.site).account_needed and not ready.plan.resources.account:
        parts.append("no account is named, and the script has none: LEONARDO_ACCOUNT=..., or --account")
    return "; ".join(parts)


def unset_variables(ready: Ready) -> list[str]:
    """Those of the site's folders that are not set in this shell."""
    cluster = cluster_of(ready.site)
    site = ready.site
    folders = (cluster.roots.shared, cluster.roots.scratch, cluster.pool(ready.pool).tmp, site.cache, site.node_cache)
    return sorted({name for folder in folders for name in re.findall(r"\$\{?\w+\}?", str(folder))})


def check(ready: Ready) -> list[Finding]:
    """What can be known before the queue."""
    cluster = cluster_of(ready.site)
    found = check_plan(ready.plan, cluster, cluster.pool(ready.pool), ready.script, ready.trainer)
    if ready.asked is not None:
        stage, model = ready.asked.stage_and_model()
        found += () if stage.rows else start_findings(model, ready.site)
        found += desk_findings(model, ready.plan.resources) if ready.asked.engine == "desk" else ()
    return [*found, *(finding_of(ready.asked, ready.ground) if ready.asked else ())]


def require(ready: Sequence[Ready]) -> None:
    """Raises InputError where there is a finding; shows each."""
    found = [(entry.plan.name, finding) for entry in ready for finding in check(entry)]
    for name, finding in found:
        typer.echo(f"{name}: {finding}", err=True)
    if found:
        raise InputError(f"nothing is submitted: {len(found)} findings", "docs/launch.md explains each")


def submit_all(ready: Sequence[Ready], after: Sequence[str] = ()) -> None:
    """Write the folders and queue the jobs, each after the one before it, the first after the jobs ``after``."""
    before = list(after)
    for entry in ready:
        script = write_folder(entry.plan, entry.script)
        try:
            if entry.asked is not None and entry.plan.ray:
                note_stage(entry.plan, entry.asked, entry.ground)
            job = slurm.submit(script, after=before, hold=True)
        except BaseException:
            release(entry.plan.folder)
            raise
        note_job(entry.plan.folder, job)
        slurm.release(job)  # held until its folder knows it: a job that was killed here before would be nobody's
        before = [job]
        typer.echo(f"job {job}: {entry.plan.title}; folder {entry.plan.folder}")


def _place(name: str) -> str:
    """A name as it is, a file by its whole path: the job reads it, too."""
    return str(Path(name).absolute()) if Path(name).suffix in (".yaml", ".yml") else name
