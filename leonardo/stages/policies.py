"""The stage behind ``leonardo evaluate policies``: checkpoints on held-out rows, whole or a part of it in a job."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from leonardo.assets.progress import ConsoleProgress, say
from leonardo.assets.selection import parse_shard
from leonardo.assets.store import AssetStore
from leonardo.errors import InputError
from leonardo.evaluation.evaluate import evaluate, finished
from leonardo.evaluation.harness import EVALUATION_SEED, evaluation_pins
from leonardo.evaluation.parts import join_files, part_files, part_name
from leonardo.evaluation.records import EvaluationRecord, read_record
from leonardo.files import require_writable
from leonardo.rollout.atif import to_atif
from leonardo.rollout.episodes import EpisodeSettings, run_rollouts
from leonardo.rollout.sandboxes import TaskSandboxes
from leonardo.sandbox.drivers import open_driver
from leonardo.sandbox.pool import PoolSettings, SandboxPool
from leonardo.site import load_site
from leonardo.stages.evaluation_parts import entries_of, piece_of
from leonardo.tasks.task import Task

_GIB = 1 << 30


@dataclass(frozen=True)
class Checkpoint:
    """A policy's Hugging Face folder, and what it is called in records."""

    name: str
    folder: Path

    def __str__(self) -> str:
        return f"{self.name}={self.folder}"


@dataclass(frozen=True)
class PoliciesRun:
    """An evaluation of several policies.

    Attributes:
        checkpoints: the policies; ``parts`` pieces of work each.
        shard: ``k/n``: of all pieces the k-th, the (k+n)-th and so on; "" for all.
        settings: bounds of an episode.
        attempts: a task; ``seed`` decides the attempts' own seeds.
        out: folder of the records.
        unpacked: GiB that unpacked layers may take on this node.
    """

    checkpoints: Sequence[Checkpoint]
    settings: EpisodeSettings
    out: Path
    parts: int = 1
    shard: str = ""
    attempts: int = 1
    seed: int = EVALUATION_SEED
    unpacked: float = 20.0

    def pieces(self) -> list[tuple[Checkpoint, int]]:
        """The pieces of work of this process: a policy and the number of a part. Raises InputError."""
        every = [(checkpoint, part + 1) for checkpoint in self.checkpoints for part in range(self.parts)]
        number, count = parse_shard(self.shard) if self.shard else (1, 1)
        if count > len(every):
            raise InputError(f"{len(every)} pieces of work are too few for {count} jobs", "Take fewer, or more --parts")
        return every[number - 1 :: count]

    def record(self, name: str, number: int) -> Path:
        """The file of a part's record."""
        return self.out / f"evaluation-{part_name(name, number, self.parts)}.json"


def checkpoints_of(words: Sequence[str]) -> list[Checkpoint]:
    """``NAME=FOLDER``, or a folder that has the name. Raises InputError where two have one name, or one is none."""
    found = []
    for word in words:
        name, equals, folder = word.partition("=")
        path = Path(folder if equals else word).absolute()
        found.append(Checkpoint(name if equals else path.name, path))
    for checkpoint in found:
        if not checkpoint.name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise InputError(f"a policy cannot be called {checkpoint.name!r}", "Letters, digits, and the signs _ . -")
        if [other.name for other in found].count(checkpoint.name) > 1:
            raise InputError(f"two policies are called {checkpoint.name}", "Name them: base=FOLDER trained=FOLDER")
    return found


def evaluate_policies(
    run: PoliciesRun, tasks: Sequence[Task], *, site: str | Path, driver_name: str, console: Console
) -> list[EvaluationRecord]:
    """Attempt the tasks of this process's pieces and write a record each; one that is there already is left.

    Raises:
        InputError: no policy in a folder, a task that cannot be prepared, an older record of another evaluation.
        InfrastructureError: there are no sandboxes here.
    """
    from accelerate import PartialState

    from leonardo.engine.desk.policy import fix_threads
    from leonardo.engine.desk.sampler import Sampler
    from leonardo.engine.desk.update import digest_of_weights

    fix_threads()
    known = load_site(site)
    for folder in (run.out, known.cache):
        require_writable(folder)
    records = []
    with open_driver(driver_name) as driver, ConsoleProgress(console) as bar:
        store = AssetStore(known.cache / "assets", driver, known, most_unpacked=int(run.unpacked * _GIB))
        entries = entries_of(store, tasks, bar)
        loaded: tuple[Checkpoint, Any, str] | None = None
        for checkpoint, number in run.pieces():
            piece = piece_of(tasks, entries, number, run.parts)
            pins = evaluation_pins(run.settings, driver=driver.name, assets=piece.assets)
            if loaded is None or loaded[0] != checkpoint:
                sampler = Sampler.load(checkpoint.folder, PartialState().device)
                loaded = checkpoint, sampler, digest_of_weights(sampler.model.state_dict())
            _, sampler, weights = loaded
            path = run.record(checkpoint.name, number)
            there = finished(
                path,
                piece.tasks,
                attempts=run.attempts,
                seed=run.seed,
                pins=pins,
                weights=weights,
                part=piece.part,
            )
            if there is None and path.is_file():
                raise InputError(f"{path} is of another evaluation", "Remove it, or name another --out")
            if there is not None:
                bar.note(f"{path.name}: there already")
                records.append(there)
                continue
            bar.start(len(piece.tasks) * run.attempts, path.stem.removeprefix("evaluation-"))
            pool = SandboxPool(PoolSettings(run.settings.live, ahead=run.settings.threads), driver=driver)
            with pool:
                sandboxes = TaskSandboxes(store, pool)
                roll: Callable[..., Any] = partial(run_rollouts, sampler, make_backend=sandboxes, settings=run.settings)
                records.append(
                    evaluate(
                        roll,
                        piece.tasks,
                        attempts=run.attempts,
                        seed=run.seed,
                        pins=pins,
                        model=checkpoint.name,
                        weights=weights,
                        output=path,
                        to_trajectory=partial(to_atif, model=checkpoint.name),
                        progress=lambda done, total: bar.advance(),
                        part=piece.part,
                    )
                )
    return records


def put_together(folder: Path, names: Sequence[str], console: Console) -> list[Path]:
    """The whole record of each policy from its parts in ``folder``; a policy that was not taken apart stays as it is.

    Raises:
        InputError: a part is missing, or parts do not belong together; what was whole is written then.
    """
    from leonardo.evaluation.verdict import interval_points, percent

    made, failures = [], []
    for name in names:
        whole = folder / f"evaluation-{name}.json"
        try:
            if files := part_files(folder, name):
                record = join_files(files, whole)
            else:
                record = read_record(whole, EvaluationRecord)
        except InputError as error:
            failures.append(f"{name}: {error.what}")
            continue
        interval = interval_points(record.pass_rate_ci).replace("+", "")
        lost = record.infrastructure_failures
        note = f", {lost} attempts without a verdict" if lost else ""
        say(console, f"{name}: {percent(record.pass_rate)} of {len(record.tasks)} tasks, {interval}{note}; {whole}")
        made.append(whole)
    if failures:
        raise InputError("; ".join(failures), "Evaluate what is missing again: launch evaluate with the same --folder")
    return made
