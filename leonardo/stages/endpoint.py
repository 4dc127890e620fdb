"""The stage behind ``leonardo evaluate run``: any policy behind chat completions, in our sandboxes and harness."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from leonardo.assets.progress import ConsoleProgress, say
from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.evaluation import EvaluationRecord, evaluate
from leonardo.evaluation.chat import ChatClient, Endpoint, Sampling
from leonardo.evaluation.conversation import Conversation
from leonardo.evaluation.harness import EVALUATION_SEED, evaluation_pins
from leonardo.evaluation.journal import Attempt, Journal
from leonardo.files import require_writable
from leonardo.gates.each import run_each
from leonardo.rollout.atif import to_atif
from leonardo.rollout.episode import EpisodeSettings
from leonardo.rollout.formats import ToolFormat
from leonardo.rollout.observation import ObservationRules
from leonardo.rollout.sandboxes import TaskSandboxes
from leonardo.sandbox.drivers import open_driver
from leonardo.sandbox.pool import PoolSettings, SandboxPool
from leonardo.site import load_site
from leonardo.stages.evaluation_parts import entries_of, piece_of
from leonardo.tasks.task import Task

BOUNDS = {
    "desk": EpisodeSettings(),
    "reference": EpisodeSettings(
        steps=64,
        turn_tokens=16_384,
        context_tokens=65_536,
        rules=ObservationRules(),
        command_timeout=120.0,
        verifier_timeout=600.0,
    ),
}
"""Bounds of an episode by name: the desk policy's, and those that the reference models are trained with."""


@dataclass(frozen=True)
class EndpointRun:
    """One evaluation.

    Attributes:
        endpoint: the policy.
        settings: bounds of an episode.
        temperature, top_p: of sampling.
        tool_format: of calls that the server does not read.
        attempts: a task; ``seed`` decides the attempts' own seeds.
        concurrency: attempts at a time.
        record: the file to write; finished attempts stand in ``<name>-attempts.jsonl`` beside it.
        name: of the model in the record.
        part: number, from 1, and count: which part of the tasks this process attempts.
    """

    endpoint: Endpoint
    settings: EpisodeSettings
    tool_format: ToolFormat
    record: Path
    name: str
    temperature: float = 1.0
    top_p: float = 1.0
    attempts: int = 1
    concurrency: int = 8
    seed: int = EVALUATION_SEED
    part: tuple[int, int] = (1, 1)


def evaluate_endpoint(
    run: EndpointRun, tasks: Sequence[Task], *, site: str | Path, driver_name: str, jobs: int, console: Console
) -> EvaluationRecord:
    """Attempt ``tasks`` and write the record; attempts that the journal has are not made again.

    Raises:
        InputError: a task that cannot be prepared, a request that the server refuses, a journal of another evaluation.
        InfrastructureError: the server is gone: attempts are lost one after the other.
    """
    known = load_site(site)
    for folder in (run.record.parent, known.cache):
        require_writable(folder)
    settings = replace(run.settings, live=run.concurrency, threads=run.concurrency)
    with open_driver(driver_name) as driver, ConsoleProgress(console) as bar:
        store = AssetStore(known.cache / "assets", driver, known)
        entries = entries_of(store, tasks, bar, jobs=jobs, verify=run.part == (1, 1))
        piece = piece_of(tasks, entries, *run.part)
        pins = evaluation_pins(
            settings,
            driver=driver.name,
            assets=piece.assets,
            temperature=run.temperature,
            top_p=run.top_p,
        ) | {"interface": f"chat-completions, calls read by {_READERS[run.endpoint.calls]}"}
        pool = SandboxPool(PoolSettings(run.concurrency, ahead=run.concurrency), driver=driver)
        sampling = Sampling(run.temperature, run.top_p, settings.turn_tokens)
        journal_path = run.record.with_name(f"{run.record.stem}-attempts.jsonl")
        journal_pins = pins | {"seed": run.seed, "served": run.endpoint.model, "name": run.name}
        with pool, ChatClient(run.endpoint, sampling) as client, Journal(journal_path, journal_pins) as journal:
            attempts = _Attempts(run, settings, client, TaskSandboxes(store, pool), journal, bar)
            record = evaluate(
                attempts.run,
                piece.tasks,
                attempts=run.attempts,
                seed=run.seed,
                pins=pins,
                model=run.name,
                output=run.record,
                to_trajectory=lambda attempt: attempt.trajectory,
                part=piece.part,
            )
        say(console, f"{attempts.resumed} attempts were finished before; {client.retried} calls were made again")
    return record


_READERS = {"native": "the server", "text": "us"}


class _Attempts:
    """Makes the attempts that a journal does not have."""

    def __init__(
        self,
        run: EndpointRun,
        settings: EpisodeSettings,
        client: ChatClient,
        sandboxes: TaskSandboxes,
        journal: Journal,
        bar: ConsoleProgress,
    ) -> None:
        self._run, self._settings, self._client = run, settings, client
        self._sandboxes, self._journal, self._bar = sandboxes, journal, bar
        self._lost_in_a_row = 0
        self.resumed = 0

    def run(self, tasks: Sequence[Task], seeds: Sequence[int]) -> list[Attempt]:
        """Attempt ``tasks[i]`` with ``seeds[i]`` for every i."""
        pairs = [*zip(tasks, seeds, strict=True)]
        made = [done for task, seed in pairs if (done := self._journal.finished.get((task.id, seed)))]
        self.resumed = len(made)
        missing = [(task, seed) for task, seed in pairs if (task.id, seed) not in self._journal.finished]
        self._bar.start(len(missing), "attempts")

        def take(attempt: Attempt) -> None:
            self._journal.add(attempt)
            made.append(attempt)
            self._bar.advance()
            if attempt.failure is not None:
                self._bar.note(f"{attempt.task_id}: no verdict: {attempt.trajectory['extra']['failure_reason']}")
            self._require_server(attempt)

        calls = [partial(self._attempt, task, seed) for task, seed in missing]
        run_each(calls, take, jobs=self._run.concurrency, stop=self._client.stop)
        return made

    def _attempt(self, task: Task, seed: int) -> Attempt:
        try:
            rollout = Conversation(
                self._client, task, seed, self._sandboxes, self._settings, self._run.tool_format
            ).run()
        except InputError:
            self._client.stop()  # what the server refuses now, it refuses every other attempt, too
            raise
        return Attempt(task.id, seed, rollout.reward, rollout.failure, to_atif(rollout, self._run.name))

    def _require_server(self, attempt: Attempt) -> None:
        """End the run where the server is gone; what is finished stands in the journal."""
        self._lost_in_a_row = self._lost_in_a_row + 1 if attempt.failure is FailureClass.ENDPOINT else 0
        if self._lost_in_a_row > 2 * self._run.concurrency:
            self._client.stop()
            raise InfrastructureError(
                f"{self._lost_in_a_row} attempts in a row were lost to {self._run.endpoint.url}",
                "Look at the server; the same command goes on from here",
                FailureClass.ENDPOINT,
            )
