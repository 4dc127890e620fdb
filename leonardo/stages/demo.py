"""The stage ``demo``: the whole recipe on this machine, on the desk tasks, from rows to base versus trained."""

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from leonardo import evidence
from leonardo.assets.progress import say
from leonardo.engine.desk.config import LearnerConfig, WarmStartConfig
from leonardo.engine.desk.learner import train
from leonardo.evaluation import Comparison, Verdict, compare, verdict
from leonardo.files import require_writable, write_verdict
from leonardo.gates.steps import StepRecord
from leonardo.site import load_site
from leonardo.stages.recipe import Corpus, Recipe, opened

RECORDS = ("run.json", "steps.jsonl", "comparison.json", "evaluation-base.json", "evaluation-trained.json")
"""Files of a run folder that its entry of the ledger names with their hashes."""

LEAST_GAIN = 0.15
BASE_RANGE = (0.15, 0.65)
"""Outside of it a base leaves too little, or too much, to learn."""

LIMITS = (
    "Anything about the reference models: this policy has half a million parameters and a closed corpus.",
    "Anything about the cluster engine: the desk engine is one process without Ray, vLLM or DeepSpeed.",
)


@dataclass(frozen=True)
class DemoConfig:
    """Sizes of the demo.

    Attributes:
        corpus: tasks of each kind.
        attempts: a held-out task, at each evaluation.
    """

    corpus: Corpus = field(default_factory=Corpus)
    attempts: int = 4
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)


@dataclass(frozen=True)
class DemoOutcome:
    """What the demo found, and where it is."""

    ok: bool
    sentence: str
    verdict: Verdict
    comparison: Comparison
    run_folder: Path


def run_demo(
    *,
    seed: int,
    site: str | Path,
    driver_name: str,
    runs: Path,
    out_path: Path,
    console: Console,
    config: DemoConfig | None = None,
) -> DemoOutcome:
    """Run the recipe and write ``out_path`` and a run folder below ``runs``.

    Raises InputError, InfrastructureError where it cannot be run here.
    """
    config = config or DemoConfig()
    episode = config.learner.episode
    started = time.monotonic()
    settings = load_site(site)
    with opened(driver_name, console) as choice:
        for folder in (runs, out_path.parent, settings.cache):
            require_writable(folder)
        evidence.require_whole(runs / evidence.LEDGER)  # what comes of this run is appended to it
        run_folder = runs / f"demo-seed{seed}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        run_folder.mkdir(parents=True)
        recipe = Recipe(config.corpus, seed, settings, choice, run_folder, console)
        recipe.prepare("1/5 prepare")
        base = recipe.warm_start("2/5 warm start", config.warm_start)
        base_record = recipe.evaluate("3/5 evaluate the base policy", base, "base", config.attempts, episode)
        trained, steps = _train(config.learner, base, recipe)
        trained_record = recipe.evaluate(
            "5/5 evaluate the trained policy", trained, "trained", config.attempts, episode
        )
        comparison = compare(base_record, trained_record)
        comparison.write(run_folder / "comparison.json")
    seconds = round(time.monotonic() - started, 1)
    pins = recipe.pins(config, episode)
    recipe.facts(f"Desk demo, seed {seed}", "demo", config, pins, LIMITS, seconds).write(run_folder / "run.json")
    found = verdict(comparison, [step.model_dump(mode="json") for step in steps])
    ok, sentence = judge(comparison, found)
    figures = {
        "base_pass_rate": comparison.base.value,
        "trained_pass_rate": comparison.trained.value,
        "difference": comparison.difference.value,
        "difference_ci_low": comparison.difference.interval[0] if comparison.difference.interval else None,
        "seconds": seconds,
        "driver": choice.driver.name,
        "degraded": choice.driver.degraded,
        "seed": seed,
        "verdict": found.kind,
        "infrastructure_failures": sum(step.infrastructure_failures for step in steps),
    }
    write_verdict(out_path, ok, figures, pins)
    evidence.append(
        runs / evidence.LEDGER,
        evidence.Evidence(
            name="demo",
            kind="stage",
            verdict="pass" if ok else "fail",
            says=sentence,
            site=settings.name,
            figures=figures,
            pins=pins,
            records=evidence.record_files(runs, [run_folder / name for name in RECORDS]),
        ),
        lambda words: say(console, words),
    )
    return DemoOutcome(ok, sentence, found, comparison, run_folder)


def judge(comparison: Comparison, found: Verdict) -> tuple[bool, str]:
    """Whether the demo's promise is kept (a gain of 15 points or more that is no accident), and why not."""
    base, difference = comparison.base.value, comparison.difference.value
    if found.kind != "learning" or difference is None or base is None:
        return False, found.sentence
    if difference < LEAST_GAIN:
        return False, f"{found.sentence} The demo promises {LEAST_GAIN:.0%} or more."
    if not BASE_RANGE[0] <= base <= BASE_RANGE[1]:
        return False, f"{found.sentence} The base should lie between {BASE_RANGE[0]:.0%} and {BASE_RANGE[1]:.0%}."
    return True, found.sentence


def _train(config: LearnerConfig, base: Path, recipe: Recipe) -> tuple[Path, list[StepRecord]]:
    steps: list[StepRecord] = []
    with recipe.phase("4/5 train") as bar, recipe.sandboxes("training", config.episode) as make_backend:
        bar.start(config.steps, "4/5 DPPO")

        def on_step(record: StepRecord) -> None:
            steps.append(record)
            bar.advance()
            bar.note(line_of(record))

        policy = train(config, base, recipe.train_tasks, recipe.folder, recipe.seed, make_backend, on_step)
    return policy, steps


def line_of(record: StepRecord) -> str:
    """A step in a line."""

    def share(value: float | None, form: str) -> str:
        return "?" if value is None else format(value, form)

    return (
        f"  step {record.step:2d}: reward {share(record.reward_mean, '.2f')}, groups kept {record.groups_kept} of "
        f"{record.groups}, masked {share(record.mask_fraction, '.1%')}, {record.times.get('step', 0):.1f} s"
    )
