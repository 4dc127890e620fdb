"""What the stages share: the corpus prepared, the warm-started base policy, an evaluation, and what they are pinned to.

Used in a stage's order; each part shows its progress under the stage's own title and says how long it took.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import PartialState
from pydantic import BaseModel
from rich.console import Console

from leonardo.assets.manifest import ManifestEntry, manifest_digest
from leonardo.assets.progress import ConsoleProgress, say
from leonardo.assets.store import AssetStore
from leonardo.engine.desk.config import WarmStartConfig
from leonardo.engine.desk.demonstrations import Demonstration
from leonardo.engine.desk.policy import fix_threads, load_policy
from leonardo.engine.desk.sampler import Sampler
from leonardo.engine.desk.update import digest_of_weights
from leonardo.engine.desk.warm_start import make_warm_start
from leonardo.engine.upstream import COMMIT
from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.evaluation import EvaluationRecord, RunFacts, Substitution, evaluate
from leonardo.evaluation.evaluate import finished
from leonardo.evaluation.harness import EVALUATION_SEED, evaluation_pins, harness_digest
from leonardo.files import digest_of, machine
from leonardo.rollout.atif import to_atif
from leonardo.rollout.episode import EpisodeSettings
from leonardo.rollout.episodes import run_rollouts
from leonardo.rollout.families import Family, Listing
from leonardo.rollout.sandboxes import MakeBackend, TaskSandboxes
from leonardo.sandbox.drivers import Choice, choose
from leonardo.sandbox.pool import PoolSettings, SandboxPool
from leonardo.site import Site
from leonardo.stages.corpus import Corpus
from leonardo.tasks.desk import DeskTask, generate, write_rows
from leonardo.tasks.rows import read_tasks
from leonardo.tasks.task import Task


class Recipe:
    """One run's parts.

    Args:
        corpus: how many tasks of each kind.
        seed: of the corpus, the model and all sampling.
        site: where it runs.
        choice: the driver, and why not another.
        folder: of the run.
        console: where progress is shown.
    """

    def __init__(self, corpus: Corpus, seed: int, site: Site, choice: Choice, folder: Path, console: Console) -> None:
        fix_threads()
        self.seed = seed
        self.folder = folder
        self.site = site
        self.driver = choice.driver
        self.store = AssetStore(site.cache / "assets", self.driver, site)
        self._refusals = choice.refusals
        self._console = console
        self._entries: list[ManifestEntry] = []
        shown = corpus.demonstrated or corpus.train
        if shown > corpus.train:
            raise InputError(
                f"corpus: {shown} tasks demonstrated of {corpus.train}", "They are train tasks: give no more"
            )
        tasks = generate("train", max(corpus.train, shown + corpus.unprepared), seed)
        self._demonstrated, self._unprepared = tasks[:shown], tasks[shown : shown + corpus.unprepared]
        self.train_tasks = [task.task for task in tasks[: corpus.train]]
        self.held_out = self._through_rows(generate("held-out", corpus.held_out, seed))

    def _through_rows(self, tasks: Sequence[DeskTask]) -> list[Task]:
        """Held-out tasks go through a file of rows, as a data set's would."""
        path = self.folder / "held-out.jsonl"
        write_rows(path, tasks)
        return read_tasks(path)

    def prepare(self, title: str) -> None:
        """Build the prepared states of both kinds of tasks. Raises InfrastructureError where one cannot be had."""
        tasks = [*self.train_tasks, *self.held_out]
        with self.phase(f"{title} {len(tasks)} tasks") as bar:
            self._entries = self.store.build(tasks, progress=bar, strict=True)
        failed = [entry for entry in self._entries if entry.failure is not None]
        if failed:
            raise InfrastructureError(
                f"{len(failed)} of {len(tasks)} desk tasks cannot be prepared "
                f"({failed[0].task_id}: {failed[0].set_up.reason})",
                "See what `make doctor` says of the sandboxes",
                failed[0].failure or FailureClass.RUNTIME,
            )

    @contextmanager
    def sandboxes(self, part: str, settings: EpisodeSettings) -> Iterator[MakeBackend]:
        """The sandboxes of one part of the run; what they did and took is then in ``sandboxes-<part>.json``."""
        with SandboxPool(PoolSettings(settings.live, ahead=settings.threads), driver=self.driver) as pool:
            sandboxes = TaskSandboxes(self.store, pool)
            yield sandboxes
        sandboxes.write_metrics(self.folder / f"sandboxes-{part}.json")

    def warm_start(
        self,
        title: str,
        config: WarmStartConfig,
        family: Family | None = None,
        pretrained: Path | None = None,
        more: Sequence[Demonstration] = (),
        listing: Listing = "brief",
    ) -> Path:
        """The base policy's Hugging Face folder, from nothing or from the folder ``pretrained``; made once.

        ``more`` are demonstrations of other environments; ``listing`` is how its chat template shows tools.
        """
        with self.phase(title) as bar, self.sandboxes("warm-start", config.episode) as make_backend:
            bar.start(config.steps, f"{title} on demonstrations")
            return make_warm_start(
                config,
                self._demonstrated,
                self._unprepared,
                make_backend,
                self.site.cache / "desk",
                self.seed,
                lambda done, total, note: bar.advance(),
                family,
                pretrained,
                more,
                listing,
            )

    def evaluate(
        self, title: str, policy: Path, name: str, attempts: int, settings: EpisodeSettings
    ) -> EvaluationRecord:
        """Attempt the held-out tasks with a policy; writes ``evaluation-<name>.json`` and the trajectories."""
        sampler = Sampler.load(policy, PartialState().device)
        with self.phase(title) as bar, self.sandboxes(f"evaluation-{name}", settings) as make_backend:
            bar.start(len(self.held_out) * attempts, title)
            roll: Callable[..., Any] = partial(run_rollouts, sampler, make_backend=make_backend, settings=settings)
            return evaluate(
                roll,
                self.held_out,
                attempts=attempts,
                seed=EVALUATION_SEED,
                pins=self.evaluation_pins(settings),
                model=name,
                weights=digest_of_weights(sampler.model.state_dict()),
                output=self.folder / f"evaluation-{name}.json",
                to_trajectory=partial(to_atif, model=name),
                progress=lambda done, total: bar.advance(),
            )

    def evaluation_pins(self, settings: EpisodeSettings) -> dict[str, Any]:
        """What :meth:`evaluate` pins its records to."""
        return evaluation_pins(settings, driver=self.driver.name, assets=self.assets_digest)

    def finished(self, policy: Path, name: str, attempts: int, settings: EpisodeSettings) -> EvaluationRecord | None:
        """The record of :meth:`evaluate` with the same arguments, where it is there already."""
        return finished(
            self.folder / f"evaluation-{name}.json",
            self.held_out,
            attempts=attempts,
            seed=EVALUATION_SEED,
            pins=self.evaluation_pins(settings),
            weights=digest_of_weights(load_policy(policy).model.state_dict()),
        )

    @property
    def assets_digest(self) -> str:
        """Names all prepared states of the run."""
        return manifest_digest(self._entries)

    def pins(self, config: Any, settings: EpisodeSettings) -> dict[str, Any]:
        """What decides the outcome; ``config`` is the stage's, a dataclass or pydantic model."""
        return {
            "upstream": COMMIT,
            "assets": self.assets_digest,
            "harness": harness_digest(settings),
            "config": digest_of(plain(config)),
            "seed": self.seed,
            "driver": self.driver.name,
            "bases": {entry.image: entry.base for entry in self._entries if entry.base},
        }

    def facts(
        self, name: str, stage: str, config: Any, pins: Mapping[str, Any], limits: Sequence[str], seconds: float
    ) -> RunFacts:
        """What the report says of the run."""
        built = [entry.set_up for entry in self._entries]
        sizes = sorted(set_up.compressed_bytes for set_up in built)
        substitutions = {(entry.image, entry.substitution) for entry in self._entries if entry.substitution}
        return RunFacts(
            name=name,
            stage=stage,
            site=self.site.name,
            driver=self.driver.name,
            degraded=self.driver.degraded,
            fallback=bool(self._refusals),
            substitutions=[Substitution(asked=asked, used=used) for asked, used in sorted(substitutions)],
            assets={
                "prepared states": len(built),
                "median delta, bytes": sizes[len(sizes) // 2] if sizes else 0,
                "bases": len({entry.base for entry in self._entries}),
            },
            pins=dict(pins),
            configuration=plain(config),
            limits=list(limits),
            machine=machine(),
            seconds=seconds,
        )

    @contextmanager
    def phase(self, title: str) -> Iterator[ConsoleProgress]:
        """Show progress under ``title``, and at the end how long it took."""
        started = time.monotonic()
        with ConsoleProgress(self._console) as bar:
            yield bar
        say(self._console, f"{title}: {time.monotonic() - started:.0f} s")


@contextmanager
def opened(driver_name: str, console: Console) -> Iterator[Choice]:
    """The driver of a run, with a line that names it and one for each that was passed over."""
    choice = choose(driver_name)
    with choice.driver:
        note = f", degraded: {choice.driver.degraded}" if choice.driver.degraded else ""
        say(console, f"sandboxes: driver {choice.driver.name}{note}")
        for refusal in choice.refusals:
            say(console, f"  not used: {refusal}")
        yield choice


def plain(config: Any) -> dict[str, Any]:
    """A configuration, a dataclass or pydantic model, as a JSON object."""
    return config.model_dump(mode="json") if isinstance(config, BaseModel) else json.loads(json.dumps(asdict(config)))
