"""The stages ``smoke`` and ``calibrate``: a few steps of training with either engine, held to the stage's criteria."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Literal

import rich.table
import torch
from rich.console import Console

from leonardo import evidence
from leonardo.assets.progress import say
from leonardo.engine.desk.learner import train as train_on_the_desk
from leonardo.engine.desk.policy import load_policy
from leonardo.engine.desk.update import digest_of_weights
from leonardo.engine.outcome import TrainingOutcome
from leonardo.engine.upstream.engine import PROJECT, STEPS_FILE, UpstreamRun, require_runnable
from leonardo.engine.upstream.engine import train as train_upstream
from leonardo.errors import InputError
from leonardo.evaluation import Comparison, compare
from leonardo.files import require_writable, write_verdict
from leonardo.gates.criteria import Finding, apply
from leonardo.gates.signal import signal_figures
from leonardo.gates.steps import StepRecord, read_records
from leonardo.hooks.sandbox import SCHEME, SITE_VARIABLE
from leonardo.hooks.sources import find
from leonardo.overlay.stack import read_stack
from leonardo.rollout.families import load_family
from leonardo.site import CACHE_VARIABLE, Site, load_site
from leonardo.stages.definition import Model, Stage, load_model, load_stage
from leonardo.stages.demo import line_of
from leonardo.stages.recipe import Recipe, opened

Engine = Literal["desk", "upstream"]

LIMITS = {
    "desk": "Anything about the cluster engine: the desk engine is one process without Ray, vLLM or DeepSpeed.",
    "upstream": "Anything about speed or memory of the reference models on the cluster: this policy is small.",
}


@dataclass(frozen=True)
class StageOutcome:
    """What a stage found, and where it is."""

    ok: bool
    sentence: str
    findings: list[Finding]
    figures: dict[str, Any]
    comparison: Comparison | None
    run_folder: Path


@dataclass(frozen=True)
class UpstreamPlace:
    """Where upstream's checkout and its Python are."""

    tree: Path
    python: Path


def run_stage(
    name: str,
    *,
    engine: Engine,
    seed: int,
    site: str,
    driver_name: str,
    runs: Path,
    out_path: Path,
    console: Console,
    place: UpstreamPlace,
    policy: Path | None = None,
    model_name: str = "",
) -> StageOutcome:
    """Run a stage and write ``out_path``, an entry of the ledger, and a run folder below ``runs``.

    It starts from ``policy`` where one is given, a desk policy's folder, else from a warm start. ``model_name`` takes
    the place of the stage's model.

    Raises InputError, InfrastructureError where it cannot be run here.
    """
    started = time.monotonic()
    stage = load_stage(name)
    model = load_model(model_name or stage.model)
    stage = stage.with_model(model)
    settings = load_site(site)
    start = None if policy else _pretrained(model, settings)
    upstream_run = _upstream_run(stage, model, settings, place)
    if engine == "upstream":
        require_runnable(upstream_run)
    with opened(driver_name, console) as choice:
        for folder in (runs, out_path.parent, settings.cache):
            require_writable(folder)
        evidence.require_whole(runs / evidence.LEDGER)
        run_folder = runs / f"{stage.name}-{engine}-seed{seed}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        run_folder.mkdir(parents=True)
        recipe = Recipe(stage.corpus_sizes(), seed, settings, choice, run_folder, console)
        recipe.prepare("prepare")
        base = policy or recipe.warm_start("warm start", stage.warm_start_config(), load_family(model.family), start)
        episode = stage.episode_settings()
        evaluate = partial(recipe.evaluate, attempts=stage.attempts, settings=episode)
        base_record = evaluate("evaluate the base policy", base, "base") if stage.attempts else None
        torch.cuda.empty_cache()  # what the evaluation held is the trainer's now
        with recipe.phase(f"train with the {engine} engine") as bar:
            bar.start(_updates(stage, engine), f"DPPO, {engine} engine")

            def on_step(record: StepRecord) -> None:
                bar.advance()
                bar.note(line_of(record))

            if engine == "desk":
                outcome = _train_on_the_desk(stage, base, recipe, on_step)
            else:
                outcome = _train_upstream(upstream_run, base, recipe, site, on_step)
        figures = signal_figures(read_records(run_folder / STEPS_FILE)) | {
            "engine": engine,
            "exit_code": outcome.exit_code,
            "leftovers": len(outcome.leftovers),
            "training_seconds": outcome.seconds,
            **_checkpoint_figures(base, outcome.policy),
        }
        comparison = None
        if base_record is not None and outcome.policy is not None:
            trained_record = evaluate("evaluate the trained policy", outcome.policy, "trained")
            comparison = compare(base_record, trained_record)
            comparison.write(run_folder / "comparison.json")
        figures |= _evaluation_figures(comparison)
    figures["seconds"] = seconds = round(time.monotonic() - started, 1)
    pins = recipe.pins(stage, episode) | {"engine": engine, "stage": stage.name, "model": model.name}
    pins |= {"family": load_family(model.family).digest}
    if engine == "upstream":
        pins |= {"patches": read_stack(PROJECT / "patches").digest}
    if engine == "desk" and (injected := stage.learner().faults.injected):
        pins |= {"injected": injected}
    pins |= {"base_policy": digest_of_weights(load_policy(base).model.state_dict())}
    recipe.facts(
        f"{stage.name}, {engine} engine, seed {seed}", stage.name, stage, pins, [LIMITS[engine]], seconds
    ).write(run_folder / "run.json")
    findings = apply(stage.criteria, figures)
    ok = all(finding.ok for finding in findings)
    write_verdict(out_path, ok, figures, pins)
    evidence.append(
        runs / evidence.LEDGER,
        evidence.Evidence(name=stage.name, verdict="pass" if ok else "fail", figures=figures, pins=pins),
    )
    for leftover in outcome.leftovers:
        say(console, f"left over: {leftover}")
    show(findings, console)
    sentence = f"{stage.name} passes: {stage.shows}." if ok else _why_not(stage, findings, outcome)
    return StageOutcome(ok, sentence, findings, figures, comparison, run_folder)


def show(findings: list[Finding], console: Console) -> None:
    """Print the criteria as a table."""
    table = rich.table.Table("figure", "value", "asked", "met")
    for finding in findings:
        value = finding.value
        shown = "not measured" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
        table.add_row(
            finding.criterion.figure, shown, finding.criterion.asks(), "yes" if finding.ok else "[red]no[/red]"
        )
    console.print(table)


def _why_not(stage: Stage, findings: list[Finding], outcome: TrainingOutcome) -> str:
    failed = [finding.sentence for finding in findings if not finding.ok]
    reason = f" The trainer: {outcome.reason}." if outcome.reason else ""
    return f"{stage.name} fails: {'; '.join(failed)}.{reason}"


def _pretrained(model: Model, site: Site) -> Path | None:
    """What the model starts from: it lies in the site's cache, below ``models``, or where its name says."""
    if model.start == "desk":
        return None
    kept = site.cache / "models" / Path(model.start).name
    folder = kept if kept.is_dir() else find(model.start)
    if folder is None:
        raise InputError(f"{model.start} is not on this machine", f"Fetch it: hf download {model.start}")
    return folder


def _updates(stage: Stage, engine: Engine) -> int:
    if engine == "desk":
        return stage.learner().steps
    flags = stage.upstream
    try:
        per_step = flags["num_unique_prompts_rollout"] * flags["num_samples_per_prompt_rollout"]
        return int(flags["total_episodes"] // per_step)
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise InputError(
            f"stage {stage.name} does not say how many updates upstream makes",
            "Give total_episodes, num_unique_prompts_rollout and num_samples_per_prompt_rollout",
        ) from error


def _upstream_run(stage: Stage, model: Model, site: Site, place: UpstreamPlace) -> UpstreamRun:
    family = load_family(model.family)
    parsers = {} if model.tool_parser else {family.name: family.upstream_entry("brief")}
    parser = model.tool_parser or family.name
    return UpstreamRun(
        flags={**site.upstream.flags, **model.upstream, **stage.upstream, "tool_parser_type": parser},
        environment=site.upstream.environment,
        ray=site.upstream.ray,
        parsers=parsers,
        episode=stage.episode_settings(),
        python=place.python.absolute(),
        tree=place.tree.absolute(),
        compiled=site.cache / "upstream",
        stall_after=stage.stall_after,
        start_within=stage.start_within,
    )


def _train_on_the_desk(
    stage: Stage, base: Path, recipe: Recipe, on_step: Callable[[StepRecord], None]
) -> TrainingOutcome:
    started = time.monotonic()
    with recipe.sandboxes("training", stage.episode_settings()) as make_backend:
        policy = train_on_the_desk(
            stage.learner(), base, recipe.train_tasks, recipe.folder, recipe.seed, make_backend, on_step
        )
    return TrainingOutcome(policy, 0, seconds=round(time.monotonic() - started, 1))


def _train_upstream(
    run: UpstreamRun, base: Path, recipe: Recipe, site: str, on_step: Callable[[StepRecord], None]
) -> TrainingOutcome:
    images = {task.id: f"{SCHEME}{recipe.store.prepared(task).digest}" for task in recipe.train_tasks}
    sandbox = {
        SITE_VARIABLE: site,
        CACHE_VARIABLE: str(recipe.site.cache),
        "LEONARDO_DRIVER": recipe.driver.name,
    }
    return train_upstream(run, base, recipe.train_tasks, images, recipe.folder, recipe.seed, sandbox, on_step)


def _checkpoint_figures(base: Path, trained: Path | None) -> dict[str, Any]:
    """Whether the trained policy loads and differs from the base, both rounded to the precision of training."""
    if trained is None:
        return {"checkpoint_loads": False, "checkpoint_differs": None}
    before, after = (load_policy(folder).model.state_dict() for folder in (base, trained))
    differs = any(
        name not in after or not torch.equal(weight.to(torch.bfloat16), after[name].to(torch.bfloat16))
        for name, weight in before.items()
    )
    return {"checkpoint_loads": True, "checkpoint_differs": differs}


def _evaluation_figures(comparison: Comparison | None) -> dict[str, Any]:
    if comparison is None:
        return {}
    difference = comparison.difference
    return {
        "base_pass_rate": comparison.base.value,
        "trained_pass_rate": comparison.trained.value,
        "difference": difference.value,
        "difference_ci_low": difference.interval[0] if difference.interval else None,
        "evaluated_pairs": difference.pairs,
    }
