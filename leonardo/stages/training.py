"""A stage that trains: opened by the rung below, bounded, evaluated, held to its criteria, entered into the ledger."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from leonardo import evidence
from leonardo.assets.progress import say
from leonardo.engine.desk.policy import load_policy
from leonardo.engine.desk.update import digest_of_weights
from leonardo.engine.outcome import TrainingOutcome
from leonardo.errors import InputError
from leonardo.evaluation import Comparison, EvaluationRecord, compare
from leonardo.files import digest_of, require_writable, write_json
from leonardo.gates.criteria import Finding, apply
from leonardo.gates.signal import signal_figures
from leonardo.gates.steps import StepRecord, read_records
from leonardo.holding import alone_in
from leonardo.rollout.families import load_family
from leonardo.site import load_site
from leonardo.stages.asked import LIMITS, Asked
from leonardo.stages.definition import Stage
from leonardo.stages.demo import RECORDS as COMMON
from leonardo.stages.demo import line_of
from leonardo.stages.ladder import GATES, criteria_below, opening
from leonardo.stages.limits import RunLimits
from leonardo.stages.pins import known_pins
from leonardo.stages.recipe import Recipe, opened
from leonardo.stages.start import pretrained
from leonardo.stages.trainers import Trainer, checkpoint_figures
from leonardo.stages.verdicts import FACTS, STEPS, Basis, record, sentence_of, show

STARTED = "stage.json"
RECORDS = (*COMMON, "outcome.json")
"""Files of a run folder that an entry of the ledger names with their hashes; the last is upstream's trainer's."""


@dataclass(frozen=True)
class StageOutcome:
    """What a stage found, and where it is."""

    stage: str
    ok: bool
    sentence: str
    stains: tuple[str, ...]
    findings: list[Finding]
    figures: dict[str, Any]
    comparison: Comparison | None
    run_folder: Path


def run_stage(asked: Asked, *, runs: Path, out_path: Path, console: Console) -> StageOutcome:
    """Run a stage and write ``out_path``, an entry of the ledger, and a run folder below ``runs``.

    Raises InputError where the rung below does not open it, or another process works in the folder that it would go on
    with; InputError or InfrastructureError where it cannot run here.
    """
    with ExitStack() as held:
        return _run(asked, runs, out_path, console, held)


def _run(asked: Asked, runs: Path, out_path: Path, console: Console, held: ExitStack) -> StageOutcome:
    """``held`` gets the run folder's lock, which lasts until the ledger has its entry."""
    began = time.monotonic()
    stage, model = asked.stage_and_model()
    if stage.rows:
        raise InputError(
            f"stage {stage.name} trains on {stage.rows}, in a job over nodes", f"leonardo launch submit {stage.name}"
        )
    site = load_site(asked.site)
    start = None if asked.policy else pretrained(model, site)
    trainer = Trainer(stage, model, asked.engine, site, asked.site, asked.place)
    for folder in (runs, out_path.parent, site.cache):
        require_writable(folder)
    with opened(asked.driver, console) as choice:
        environment = asked.place.environment if asked.engine == "upstream" else None
        pins = known_pins(stage, model, asked.engine, site, choice.driver.name, asked.seed, environment)
        _open(stage, pins, asked, runs)
        run_folder = _run_folder(stage, asked, pins, runs, console)
        held.enter_context(alone_in(run_folder))
        recipe = Recipe(stage.corpus_sizes(), asked.seed, site, choice, run_folder, console)
        recipe.prepare("prepare")
        base = asked.policy or recipe.warm_start(
            "warm start", stage.warm_start_config(), load_family(model.family), start
        )
        pins |= recipe.pins(stage, stage.episode_settings())
        pins |= {"base_policy": digest_of_weights(load_policy(base).model.state_dict())}
        basis = _open(stage, pins, asked, runs)
        base_record = _evaluated(stage, recipe, base, "base")
        torch.cuda.empty_cache()  # what the evaluation held is the trainer's now
        limits = RunLimits(stage, site.cost, read_records(run_folder / STEPS))
        outcome = _trained(trainer, base, recipe, limits)
        comparison = None
        if base_record is not None and outcome.policy is not None:
            comparison = compare(base_record, _evaluated(stage, recipe, outcome.policy, "trained"))
            comparison.write(run_folder / "comparison.json")
    figures = (
        signal_figures(read_records(run_folder / STEPS))
        | {"engine": asked.engine, "exit_code": outcome.exit_code, "leftovers": len(outcome.leftovers)}
        | checkpoint_figures(base, outcome.policy)
        | limits.figures()
        | _evaluation_figures(stage, comparison)
        | {"training_seconds": outcome.seconds, "seconds": round(time.monotonic() - began, 1)}
    )
    findings = apply(stage.criteria, figures)
    sentence = sentence_of(stage, findings, figures, comparison, outcome.reason)
    for leftover in outcome.leftovers:
        say(console, f"left over: {leftover}")
    show(findings, console)
    title = f"{stage.name}, {asked.engine} engine, seed {asked.seed}"
    facts = recipe.facts(title, stage.name, stage, pins, [LIMITS[asked.engine]], figures["seconds"])
    facts = facts.model_copy(update={"base": str(base)})
    record(stage, facts, basis, findings, sentence, figures, run_folder, runs, out_path, console, files=RECORDS)
    ok = all(finding.ok for finding in findings)
    return StageOutcome(stage.name, ok, sentence, basis.stains, findings, figures, comparison, run_folder)


def _open(stage: Stage, pins: Mapping[str, Any], asked: Asked, runs: Path) -> Basis:
    """What the run stands on. Raises InputError where nothing opens it and it is not forced."""
    ledger = runs / evidence.LEDGER
    evidence.require_whole(ledger)
    criteria = criteria_below(asked.name, stage.after, asked.stage_and_model()[1])
    found = opening(stage.after, pins, evidence.read(ledger), runs, criteria)
    if found.open:
        return Basis(found, "")
    if not asked.force:
        same = f" --model {asked.model}" if asked.model else ""
        below = f"leonardo stage run {stage.after} --engine {asked.engine}{same}"
        run = "make gates" if stage.after == GATES else below
        raise InputError(
            f"{stage.name} is shut: {found.why}",
            f"Run it first: {run}; or --force REASON, which stains this run and all that builds on it",
        )
    return Basis(found, f"{stage.name} was forced although {found.why}: {asked.force}")


def _run_folder(stage: Stage, asked: Asked, pins: Mapping[str, Any], runs: Path, console: Console) -> Path:
    """A new run folder, or that of a run of the same stage that was interrupted, where the stage is resumed.

    Interrupted is what the ledger has no entry of: a disk that was full at the very end lost nothing, either.
    """
    stem = f"{stage.name}-{asked.engine}-seed{asked.seed}"
    key = digest_of([{name: value for name, value in pins.items() if name != "overlay"}, str(asked.policy or "")])
    if stage.resume and asked.engine == "desk" and not asked.fresh:
        entered = {record.path for entry in evidence.read(runs / evidence.LEDGER) for record in entry.records}
        for folder in sorted(runs.glob(f"{stem}-*"), reverse=True):
            if (folder / STARTED).is_file() and f"{folder.name}/{FACTS}" not in entered:
                if f'"{key}"' not in (folder / STARTED).read_text():
                    say(console, f"{folder} was interrupted, too, but with other settings or pins: it is left alone")
                    continue
                say(console, f"going on with {folder}, which was interrupted")
                return folder
    folder = runs / f"{stem}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
    folder.mkdir(parents=True)
    write_json(folder / STARTED, {"key": key, "pins": dict(pins)})
    return folder


def _evaluated(stage: Stage, recipe: Recipe, policy: Path, name: str) -> EvaluationRecord | None:
    """The policy's evaluation; the one that is there already where a run is gone on with."""
    if not stage.attempts:
        return None
    settings = stage.episode_settings()
    if (there := recipe.finished(policy, name, stage.attempts, settings)) is not None:
        return there
    return recipe.evaluate(f"evaluate the {name} policy", policy, name, stage.attempts, settings)


def _trained(trainer: Trainer, base: Path, recipe: Recipe, limits: RunLimits) -> TrainingOutcome:
    with recipe.phase(f"train with the {trainer.engine} engine") as bar:
        bar.start(trainer.updates, f"DPPO, {trainer.engine} engine")

        def look(record: StepRecord) -> bool:
            bar.advance()
            bar.note(line_of(record))
            if stop := limits.look(record):
                bar.note(f"  stopping: {limits.reason}")
            return stop

        outcome = trainer.train(base, recipe, look, bar.note)
    return replace(outcome, reason=outcome.reason or limits.reason)


def _evaluation_figures(stage: Stage, comparison: Comparison | None) -> dict[str, Any]:
    if comparison is None:
        return {}
    difference = comparison.difference
    interval = difference.interval
    return {
        "base_pass_rate": comparison.base.value,
        "trained_pass_rate": comparison.trained.value,
        "difference": difference.value,
        "difference_ci_low": interval[0] if interval else None,
        "difference_ci_high": interval[1] if interval else None,
        "evaluated_pairs": difference.pairs,
        **({"direction": stage.direction.judge(interval, difference.pairs)} if stage.direction else {}),
    }
