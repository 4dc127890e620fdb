"""The stage ``transfer``: each model's base trained on either kind of task, and every checkpoint evaluated on both.

The run's folder is named by what decides it, so that the same command goes on where it was: a training resumes from
its last checkpoint, and a cell that is there, of the same weights, tasks, seeds and pins, is not run again.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from rich.console import Console

from leonardo import evidence
from leonardo.assets.progress import say
from leonardo.engine.desk.config import LearnerConfig
from leonardo.engine.desk.function_demonstrations import function_demonstrations
from leonardo.engine.desk.learner import POLICY_FOLDER, STEPS_FILE, train
from leonardo.engine.desk.policy import load_policy
from leonardo.engine.desk.sampler import Sampler
from leonardo.engine.desk.update import digest_of_weights
from leonardo.evaluation import EvaluationRecord, compare, evaluate
from leonardo.evaluation.evaluate import finished
from leonardo.evaluation.harness import EVALUATION_SEED, evaluation_pins
from leonardo.files import digest_of, require_writable, write_json, write_verdict
from leonardo.functions.checkers import Checkers, package_pins
from leonardo.functions.desk import SYSTEM
from leonardo.functions.environment import FORMAT_ERROR, FunctionWorlds
from leonardo.gates.criteria import Finding, apply
from leonardo.gates.signal import signal_figures
from leonardo.gates.steps import read_records
from leonardo.holding import alone_in
from leonardo.rollout.atif import to_atif
from leonardo.rollout.episodes import run_rollouts
from leonardo.rollout.families import load_family
from leonardo.site import load_site
from leonardo.stages.definition import Model, Stage, load_model
from leonardo.stages.demo import line_of
from leonardo.stages.recipe import Recipe, opened, plain
from leonardo.stages.start import pretrained
from leonardo.stages.transferfile import KINDS, Kind, Transfer, learner_of, limits_of, load_transfer
from leonardo.stages.transfermatrix import BASE, Effect, Matrix
from leonardo.stages.transferready import require_room_for, require_startable
from leonardo.stages.transferrows import FunctionRows, function_rows

ROWS_FILE = "function-rows.json"


@dataclass(frozen=True)
class TransferOutcome:
    """What the study found, and where it is."""

    ok: bool
    sentence: str
    stage: Transfer
    matrix: Matrix
    findings: list[Finding]
    run_folder: Path
    pins: dict[str, Any]
    site: str


def run_transfer(
    name: str | Path,
    *,
    seed: int,
    site: str | Path,
    driver_name: str,
    runs: Path,
    out: Path,
    console: Console,
    to_come: Sequence[int] = (),
) -> TransferOutcome:
    """Run the study with a seed, or what of it is not yet there. Writes a verdict into ``out`` and the ledger.

    ``to_come`` are seeds with which it is run afterwards: there has to be room for these runs, too.

    Raises InputError, InfrastructureError where it cannot be run here, or another process works on it.
    """
    with ExitStack() as held:  # the run folder's lock, which lasts until the ledger has its entry
        started = time.monotonic()
        stage = load_transfer(name)
        settings = load_site(site)
        parameters = require_startable(stage, settings)
        package = package_pins()
        with opened(driver_name, console) as choice, Checkers() as checkers:
            for folder in (runs, out, settings.cache):
                require_writable(folder)
            evidence.require_whole(runs / evidence.LEDGER)
            of_file = {name: value for name, value in plain(stage).items() if name != "seeds"}
            models = [plain(load_model(model)) for model in stage.models]
            folders = [
                runs / f"{stage.name}-seed{each}-{digest_of([of_file, models, each, choice.driver.name, package])[:12]}"
                for each in (seed, *to_come)
            ]
            run_folder = folders[0]
            held.enter_context(alone_in(run_folder))
            require_room_for(stage, parameters, folders, settings)
            rows = function_rows(stage, seed, settings, checkers)
            recipe = Recipe(stage.corpus_sizes(), seed, settings, choice, run_folder, console)
            recipe.prepare("prepare")
            study = _Study(stage, recipe, rows, checkers, package, console)
            matrix = study.run()
        seconds = round(time.monotonic() - started, 1)
        pins = (
            recipe.pins(stage, stage.episode_settings()) | package | {"stage": stage.name, "models": list(stage.models)}
        )
        figures = matrix.figures(stage) | {"seconds": seconds, "cells_run": study.ran}
        facts = recipe.facts(f"Transfer, seed {seed}", stage.name, stage, pins, limits_of(stage), seconds)
        facts.write(run_folder / "run.json")
        findings = apply(stage.criteria, figures)
        ok = all(finding.ok for finding in findings)
        write_verdict(out / _verdict_name(stage, seed), ok, figures, pins)
        failed = "; ".join(finding.sentence for finding in findings if not finding.ok)
        sentence = f"{stage.name} passes: {stage.shows}." if ok else f"{stage.name} fails: {failed}."
        evidence.append(
            runs / evidence.LEDGER,
            evidence.Evidence(
                name=stage.name,
                verdict="pass" if ok else "fail",
                figures=figures,
                pins=pins,
                says=sentence,
                kind="stage",
                site=settings.name,
                criteria=tuple(
                    evidence.Judged(
                        figure=finding.criterion.figure,
                        value=finding.value,
                        threshold=finding.criterion.asks(),
                        ok=finding.ok,
                    )
                    for finding in findings
                ),
                records=evidence.record_files(runs, _records(run_folder)),
            ),
        )
        return TransferOutcome(ok, sentence, stage, matrix, findings, run_folder, pins, settings.name)


class _Study:
    """The cells, in order; ``ran`` counts the evaluations that were not there yet."""

    def __init__(
        self,
        stage: Transfer,
        recipe: Recipe,
        rows: FunctionRows,
        checkers: Checkers,
        package: dict[str, str],
        console: Console,
    ) -> None:
        self.stage, self.recipe, self.console = stage, recipe, console
        self.package = package
        self.worlds = FunctionWorlds(checkers)
        self.rows = rows
        if rows.counts:
            ids = [[task.id for task in part] for part in (rows.train, rows.held_out)]
            write_json(recipe.folder / ROWS_FILE, {"left": rows.counts, "train": ids[0], "held_out": ids[1]})
        self.matrix = Matrix()
        self.ran = 0

    def run(self) -> Matrix:
        """All of them."""
        for number, name in enumerate(self.stage.models):
            model = load_model(name)
            stage = self.stage.with_model(model)
            base = self._base(stage, model)
            starts = {BASE: base}
            for kind in KINDS:
                config = learner_of(self.stage, stage, kind)
                starts[kind] = self._trained(model, kind, kind, base, config, self.recipe.seed)
            if number == 0:
                control = self.stage.control
                config = learner_of(self.stage, stage, control.kind, control.desk)
                for more, start in enumerate(control.starts):
                    starts[start] = self._trained(model, start, control.kind, base, config, self.recipe.seed + more)
            for start, policy in starts.items():
                for kind in KINDS:
                    self.matrix.records[name, start, kind] = self._evaluated(stage, name, start, kind, policy)
            for start in list(starts)[1:]:
                self.matrix.effects += [self._effect(name, start, kind) for kind in KINDS]
        return self.matrix

    def _base(self, stage: Stage, model: Model) -> Path:
        family = load_family(model.family)
        config, functions = stage.warm_start_config(), self.stage.functions
        more = function_demonstrations(
            self.rows.demonstrated,
            family.tool_format,
            right=functions.right,
            seed=config.data_seed,
            count=functions.demonstrations,
        )
        start = pretrained(model, self.recipe.site)
        title, listing = f"{model.name}: warm start", self.stage.listing
        return self.recipe.warm_start(title, config, family, start, more, listing)

    def _trained(self, model: Model, start: str, kind: Kind, base: Path, config: LearnerConfig, seed: int) -> Path:
        """The checkpoint of a training; one that was interrupted goes on, one that is whole stays as it is."""
        folder = self.recipe.folder / model.name / start
        policy = folder / POLICY_FOLDER
        if not _is_trained(folder, config):
            with self.recipe.phase(f"{model.name}: train {start}") as bar:
                bar.start(config.steps, f"{model.name}: DPPO on {kind}")

                def on_step(record: Any) -> None:
                    bar.advance()
                    bar.note(line_of(record))

                learn = partial(train, config, base, run_folder=folder, seed=seed, on_step=on_step, resume=True)
                if kind == "functions":
                    learn(tasks=self.rows.train, make_backend=self.worlds)
                else:
                    with self.recipe.sandboxes(f"{model.name}-{start}", config.episode) as make_backend:
                        learn(tasks=self.recipe.train_tasks, make_backend=make_backend)
        self.matrix.signals[model.name, start] = apply(
            self.stage.gate, signal_figures(read_records(folder / STEPS_FILE))
        )
        return policy

    def _evaluated(self, stage: Stage, model: str, start: str, kind: Kind, policy: Path) -> EvaluationRecord:
        name = f"{model}-{start}-{kind}"
        path = self.recipe.folder / f"evaluation-{name}.json"
        settings = stage.episode_settings()
        if kind == "terminal":
            record = self.recipe.finished(policy, name, self.stage.attempts, settings)
            if record is None:
                self.ran += 1
                return self.recipe.evaluate(f"evaluate {name}", policy, name, self.stage.attempts, settings)
            say(self.console, f"{name}: there already")
            return record
        pins = evaluation_pins(settings, driver="bfcl-eval", assets=digest_of(self.package))
        pins |= {"prompts": digest_of([SYSTEM, FORMAT_ERROR])}
        weights = digest_of_weights(load_policy(policy).model.state_dict())
        record = finished(
            path, self.rows.held_out, attempts=self.stage.attempts, seed=EVALUATION_SEED, pins=pins, weights=weights
        )
        if record is not None:
            say(self.console, f"{name}: there already")
            return record
        self.ran += 1
        sampler = Sampler.load(policy, PartialState().device)
        with self.recipe.phase(f"evaluate {name}") as bar:
            bar.start(len(self.rows.held_out) * self.stage.attempts, name)
            roll: Callable[..., Any] = partial(run_rollouts, sampler, make_backend=self.worlds, settings=settings)
            return evaluate(
                roll,
                self.rows.held_out,
                attempts=self.stage.attempts,
                seed=EVALUATION_SEED,
                pins=pins,
                model=name,
                weights=weights,
                output=path,
                to_trajectory=partial(to_atif, model=name),
                progress=lambda done, total: bar.advance(),
            )

    def _effect(self, model: str, start: str, kind: Kind) -> Effect:
        comparison = compare(self.matrix.records[model, BASE, kind], self.matrix.records[model, start, kind])
        comparison.write(self.recipe.folder / f"comparison-{model}-{start}-{kind}.json")
        difference = comparison.difference
        return Effect(model, start, kind, comparison, self.stage.rule.judge(difference.interval, difference.pairs))


def _verdict_name(stage: Transfer, seed: int) -> str:
    """A study over several seeds has a verdict of its own: that of a seed, alone or among them, has another name."""
    return f"{stage.name}-seed{seed}.json" if len(stage.seeds) > 1 else f"{stage.name}.json"


def _is_trained(folder: Path, config: LearnerConfig) -> bool:
    """Whether a training's policy is there, with a record of every step."""
    steps = [record.step for record in read_records(folder / STEPS_FILE)]
    return (folder / POLICY_FOLDER / "config.json").is_file() and steps == list(range(1, config.steps + 1))


def _records(run_folder: Path) -> list[Path]:
    """What the cells left, which no later run of the same study writes differently."""
    patterns = ("evaluation-*.json", "comparison-*.json", f"*/*/{STEPS_FILE}")
    return sorted(path for pattern in patterns for path in run_folder.glob(pattern))
