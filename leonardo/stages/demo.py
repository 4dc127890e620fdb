"""The stage ``demo``: the whole recipe on this machine, on the desk tasks, from rows to base versus trained."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from leonardo import evidence
from leonardo.assets.manifest import ManifestEntry, manifest_digest
from leonardo.assets.progress import ConsoleProgress
from leonardo.assets.store import AssetStore
from leonardo.engine.desk.config import LearnerConfig, WarmStartConfig
from leonardo.engine.desk.learner import train
from leonardo.engine.desk.records import StepRecord
from leonardo.engine.desk.sampler import Sampler
from leonardo.engine.desk.update import digest_of_weights
from leonardo.engine.desk.warm_start import make_warm_start
from leonardo.errors import FailureClass, InfrastructureError
from leonardo.evaluation import (
    Comparison,
    EvaluationRecord,
    RunFacts,
    Substitution,
    Verdict,
    compare,
    evaluate,
    verdict,
)
from leonardo.files import digest_of, machine, require_writable, write_verdict
from leonardo.rollout.atif import to_atif
from leonardo.rollout.episodes import MakeBackend, run_rollouts
from leonardo.rollout.prompts import BASH_TOOL, FORMAT_ERROR, SYSTEM_PROMPT
from leonardo.sandbox.driver import Driver
from leonardo.sandbox.drivers import Choice, choose
from leonardo.site import Site, load_site
from leonardo.tasks.desk import DeskTask, generate, write_rows
from leonardo.tasks.rows import read_tasks
from leonardo.tasks.task import Task

UPSTREAM = "1cce58a2627c39e41ab2d3033ddbb082787da23a"
EVALUATION_SEED = 20_000
LEDGER = "ledger.jsonl"
LEAST_GAIN = 0.15
BASE_RANGE = (0.15, 0.65)
"""Outside of it a base leaves too little, or too much, to learn."""


@dataclass(frozen=True)
class DemoConfig:
    """Sizes of the demo.

    Attributes:
        train, held_out: tasks that are prepared.
        unprepared: train tasks of which the warm start sees the first turn of a demonstration only.
        attempts: a held-out task, at each evaluation.
    """

    train: int = 300
    held_out: int = 92
    unprepared: int = 5000
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
    started = time.monotonic()
    settings = load_site(site)
    with _opened(driver_name, console) as choice:
        for folder in (runs, out_path.parent, settings.cache):
            require_writable(folder)
        evidence.verify(runs / LEDGER)  # what comes of this run is appended to it
        run_folder = runs / f"demo-seed{seed}-{datetime.now(UTC):%Y%m%dT%H%M%S}"
        run_folder.mkdir(parents=True)
        demo = _Demo(config, seed, settings, choice, run_folder, console)
        comparison, steps = demo.run()
    seconds = round(time.monotonic() - started, 1)
    demo.facts(seconds).write(run_folder / "run.json")
    found = verdict(comparison, steps)
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
        "infrastructure_failures": sum(step["infrastructure_failures"] for step in steps),
    }
    write_verdict(out_path, ok, figures, demo.pins())
    evidence.append(runs / LEDGER, evidence.Evidence("demo", "pass" if ok else "fail", figures, demo.pins()))
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


@contextmanager
def _opened(driver_name: str, console: Console) -> Iterator[Choice]:
    choice = choose(driver_name)
    with choice.driver:
        note = f", degraded: {choice.driver.degraded}" if choice.driver.degraded else ""
        _say(console, f"sandboxes: driver {choice.driver.name}{note}")
        for refusal in choice.refusals:
            _say(console, f"  not used: {refusal}")
        yield choice


class _Demo:
    def __init__(
        self, config: DemoConfig, seed: int, site: Site, choice: Choice, run_folder: Path, console: Console
    ) -> None:
        self._config = config
        self._seed = seed
        self._site = site
        self._choice = choice
        self._driver: Driver = choice.driver
        self._folder = run_folder
        self._console = console
        self._store = AssetStore(site.cache / "assets", self._driver, site)
        self._entries: list[ManifestEntry] = []

    def run(self) -> tuple[Comparison, list[dict[str, Any]]]:
        config = self._config
        train_tasks = generate("train", config.train + config.unprepared, self._seed)
        prepared, unprepared = train_tasks[: config.train], train_tasks[config.train :]
        held_out = self._through_rows(generate("held-out", config.held_out, self._seed))
        self._prepare([*(task.task for task in prepared), *held_out])
        base = self._warm_start(prepared, unprepared)
        base_record = self._evaluate(base, "base", held_out)
        steps: list[StepRecord] = []
        trained = self._train(base, [task.task for task in prepared], steps)
        trained_record = self._evaluate(trained, "trained", held_out)
        comparison = compare(base_record, trained_record)
        comparison.write(self._folder / "comparison.json")
        return comparison, [step.model_dump(mode="json") for step in steps]

    def pins(self) -> dict[str, Any]:
        """What decides the outcome."""
        return {
            "upstream": UPSTREAM,
            "assets": manifest_digest(self._entries),
            "harness": _harness_digest(self._config),
            "config": digest_of(asdict(self._config)),
            "seed": self._seed,
            "driver": self._driver.name,
        }

    def facts(self, seconds: float) -> RunFacts:
        built = [entry.set_up for entry in self._entries]
        sizes = sorted(set_up.compressed_bytes for set_up in built)
        substitutions = {(entry.image, entry.substitution) for entry in self._entries if entry.substitution}
        return RunFacts(
            name=f"Desk demo, seed {self._seed}",
            stage="demo",
            site=self._site.name,
            driver=self._driver.name,
            degraded=self._driver.degraded,
            fallback=bool(self._choice.refusals),
            substitutions=[Substitution(asked=asked, used=used) for asked, used in sorted(substitutions)],
            assets={
                "prepared states": len(built),
                "median delta, bytes": sizes[len(sizes) // 2] if sizes else 0,
                "bases": len({entry.base for entry in self._entries}),
            },
            pins=self.pins(),
            configuration=json.loads(json.dumps(asdict(self._config))),
            limits=[
                "Anything about the reference models: this policy has half a million parameters and a closed corpus.",
                "Anything about the cluster engine: the desk engine is one process without Ray, vLLM or DeepSpeed.",
            ],
            machine=machine(),
            seconds=seconds,
        )

    def _through_rows(self, tasks: Sequence[DeskTask]) -> list[Task]:
        """Held-out tasks go through a file of rows, as a data set's would."""
        path = self._folder / "held-out.jsonl"
        write_rows(path, tasks)
        return read_tasks(path)

    def _prepare(self, tasks: Sequence[Task]) -> None:
        with self._phase(f"1/5 prepare {len(tasks)} tasks") as bar:
            self._entries = self._store.build(tasks, progress=bar)
        failed = [entry for entry in self._entries if entry.failure is not None]
        if failed:
            raise InfrastructureError(
                f"{len(failed)} of {len(tasks)} desk tasks cannot be prepared "
                f"({failed[0].task_id}: {failed[0].set_up.reason})",
                "See what `make doctor` says of the sandboxes",
                failed[0].failure or FailureClass.RUNTIME,
            )

    def _make_backend(self) -> MakeBackend:
        return lambda task: self._driver.backend(self._store.prepared(task).stack)

    def _warm_start(self, prepared: Sequence[DeskTask], unprepared: Sequence[DeskTask]) -> Path:
        config = self._config.warm_start
        with self._phase("2/5 warm start") as bar:
            bar.start(config.steps, "2/5 warm start on demonstrations")
            return make_warm_start(
                config,
                prepared,
                unprepared,
                self._make_backend(),
                self._site.cache / "desk",
                self._seed,
                lambda done, total, note: bar.advance(),
            )

    def _train(self, base: Path, tasks: Sequence[Task], steps: list[StepRecord]) -> Path:
        config = self._config.learner
        with self._phase("4/5 train") as bar:
            bar.start(config.steps, "4/5 DPPO")

            def on_step(record: StepRecord) -> None:
                steps.append(record)
                bar.advance()
                bar.note(
                    f"  step {record.step:2d}: reward {record.reward_mean:.2f}, groups kept {record.groups_kept} of "
                    f"{record.groups}, masked {record.mask_fraction:.1%}, {record.times['step']:.1f} s"
                )

            return train(config, base, tasks, self._folder, self._seed, self._make_backend(), on_step)

    def _evaluate(self, policy: Path, name: str, tasks: Sequence[Task]) -> EvaluationRecord:
        number = "3/5" if name == "base" else "5/5"
        sampler = Sampler.load(policy)
        settings = self._config.learner.episode
        roll: Callable[..., Any] = partial(run_rollouts, sampler, make_backend=self._make_backend(), settings=settings)
        with self._phase(f"{number} evaluate the {name} policy") as bar:
            bar.start(len(tasks) * self._config.attempts, f"{number} evaluate the {name} policy")
            return evaluate(
                roll,
                tasks,
                attempts=self._config.attempts,
                seed=EVALUATION_SEED,
                pins={
                    "driver": self._driver.name,
                    "sampling": {"temperature": 1.0, "top_p": 1.0, "max_turn_tokens": settings.turn_tokens},
                    "harness": _harness_digest(self._config),
                    "assets": manifest_digest(self._entries),
                },
                model=name,
                weights=digest_of_weights(sampler.model.state_dict()),
                output=self._folder / f"evaluation-{name}.json",
                to_trajectory=partial(to_atif, model=name),
                progress=lambda done, total: bar.advance(),
            )

    @contextmanager
    def _phase(self, title: str) -> Iterator[ConsoleProgress]:
        started = time.monotonic()
        with ConsoleProgress(self._console) as bar:
            yield bar
        _say(self._console, f"{title}: {time.monotonic() - started:.0f} s")


def _harness_digest(config: DemoConfig) -> str:
    """Names prompts, tool and the bounds of an episode; how many run at once does not decide an outcome."""
    bounds = asdict(replace(config.learner.episode, live=0, threads=0))
    return digest_of([SYSTEM_PROMPT, BASH_TOOL, FORMAT_ERROR, bounds])


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
