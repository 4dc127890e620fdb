"""Diagnosis: what keeps each row of a selection from serving, one class a row, in rungs of growing size.

A row is built, put through the environment gates, audited and judged; an episode may be replayed on it. What comes out
is one record, appended to a journal and on the disk before the next row begins: a diagnosis that was killed goes on
where it was, and nothing that has a record is built or judged again.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from leonardo.assets.manifest import ManifestEntry
from leonardo.assets.progress import BuildProgress
from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, FailureFamily, InputError
from leonardo.files import digest_of
from leonardo.gates.audit import Audit
from leonardo.gates.environment import TaskReport, check_task
from leonardo.holding import taken
from leonardo.rollout.environment import TerminalEnvironment
from leonardo.rollout.prompts import SUBMIT_COMMAND
from leonardo.sandbox.driver import Driver
from leonardo.tasks.task import Task

RUNGS = (12, 200)
"""Rows after which the ladder looks at what it has found; the last rung has all."""
MOST_INFRASTRUCTURE = 0.5
"""A rung of which more than this share fails for the machine's sake ends the ladder: more rows would say no more."""


@dataclass(frozen=True)
class Case:
    """A row to diagnose.

    Attributes:
        task: the row.
        attempt: commands of an episode to replay, after which the verifier is asked; none for no episode.
        before_check: called between its build and its first sandbox.
    """

    task: Task
    attempt: Sequence[str] = ()
    before_check: Callable[[ManifestEntry], None] | None = None


@dataclass(frozen=True)
class Diagnosis:
    """What was found for one row.

    Attributes:
        key: names the row and all that it was judged with; a row has one record a key.
        task_id, kind: the row.
        built, passed: whether it was built, and whether nothing was found against it.
        failure: the class of what was found first; ``None`` where it passed, or where nobody has a class for it.
        reason: one line.
        set_up: key of its set-up; the store has its log by that name, where it was run.
        rules: compat rules that applied, ``id@version``.
        with_rules: whether compat rules were used at all.
        seconds: what its gates took.
    """

    key: str
    task_id: str
    kind: str
    built: bool
    passed: bool
    failure: FailureClass | None
    reason: str
    set_up: str = ""
    rules: tuple[str, ...] = ()
    with_rules: bool = True
    seconds: float = 0.0

    @property
    def unclassified(self) -> bool:
        """Whether it failed and has no class: a fault of ours."""
        return not self.passed and self.failure is None


class Journal:
    """Records of diagnoses, one JSON object a line, only appended to; each is on the disk when :meth:`add` returns.

    A line that was cut short by a kill is no record; it is removed when the journal is opened. A context manager: only
    one process at a time has it open.

    Raises:
        InputError: another has.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = path.open("a+b")
        if not taken(self._stream):
            self._stream.close()
            raise InputError(f"Another diagnosis writes to {path}", "Wait for it, or name another folder")
        self._stream.seek(0)
        self._stream.truncate(self._stream.read().rfind(b"\n") + 1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def read(self) -> dict[str, Diagnosis]:
        """The records, by key. Raises InputError on a line that is none."""
        return {record.key: record for record in read_records(self.path)}

    def add(self, record: Diagnosis) -> None:
        """Append a record."""
        line = json.dumps(asdict(record), sort_keys=True, allow_nan=False) + "\n"
        self._stream.write(line.encode())
        self._stream.flush()
        os.fsync(self._stream.fileno())


def read_records(path: Path) -> list[Diagnosis]:
    """The records of a journal, oldest first; none where there is no file. Raises InputError on a line that is none."""
    records = []
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else [], 1):
        try:
            values = json.loads(line)
            failure = FailureClass(values["failure"]) if values["failure"] else None
            records.append(Diagnosis(**values | {"failure": failure, "rules": tuple(values["rules"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{path} line {number} is no record of a diagnosis", "Remove the file; rows are judged again"
            ) from error
    return records


@dataclass(frozen=True)
class Rung:
    """What one rung of the ladder came to, from the first row on."""

    rows: int
    built: int
    passed: int
    classified: Mapping[str, int]
    unclassified: int
    seconds: float

    @property
    def infrastructure(self) -> int:
        """Rows that failed for the machine's sake."""
        return sum(
            count
            for name, count in self.classified.items()
            if FailureClass(name).family is FailureFamily.INFRASTRUCTURE
        )


class Ladder:
    """Diagnoses rows, rung by rung.

    Args:
        pins: what the rows are judged with besides themselves; part of each record's key.
        with_rules: whether ``store`` uses compat rules; noted in the records.
        jobs: builds and checks at a time.
    """

    def __init__(
        self,
        store: AssetStore,
        driver: Driver,
        journal: Journal,
        pins: Mapping[str, Any],
        *,
        with_rules: bool = True,
        jobs: int = 2,
        progress: BuildProgress | None = None,
    ) -> None:
        self._store = store
        self._driver = driver
        self._journal = journal
        self._pins = digest_of({**pins, "with_rules": with_rules})
        self._with_rules = with_rules
        self._jobs = jobs
        self._progress = progress or BuildProgress()
        self._audit = Audit(store, driver)

    def climb(self, cases: Sequence[Case], rungs: Iterable[int] = RUNGS) -> Iterator[tuple[Rung, list[Diagnosis]]]:
        """Diagnose ``cases``; after each rung what it came to, with the records of its rows from the first on.

        The ladder ends early where the machine is at fault, see :data:`MOST_INFRASTRUCTURE`.
        """
        began = time.monotonic()
        bounds = [*(bound for bound in sorted(set(rungs)) if bound < len(cases)), len(cases)]
        for bound in bounds:
            known = self._journal.read()
            keys = [self.key(case) for case in cases[:bound]]
            known |= self._diagnose([case for case, key in zip(cases, keys, strict=False) if key not in known])
            records = [known[key] for key in keys]
            rung = rung_of(records, time.monotonic() - began)
            yield rung, records
            if rung.infrastructure > MOST_INFRASTRUCTURE * rung.rows:
                return

    def key(self, case: Case) -> str:
        """Names a row and all that it is judged with."""
        return digest_of([case.task.digest, case.task.reference_solution, list(case.attempt), self._pins])

    def _diagnose(self, cases: Sequence[Case]) -> dict[str, Diagnosis]:
        """Build and judge rows that have no record."""
        if not cases:
            return {}
        by_digest = {case.task.digest: case for case in cases}
        found: dict[str, Diagnosis] = {}

        def record(case: Case, entry: ManifestEntry, failure: FailureClass | None, reason: str, **more: Any) -> None:
            diagnosis = Diagnosis(
                key=self.key(case),
                task_id=case.task.id,
                kind=case.task.kind,
                built=entry.failure is None,
                failure=failure,
                reason=" ".join(reason.split())[:300],
                set_up=entry.set_up.key,
                rules=entry.set_up.rules,
                with_rules=self._with_rules,
                **more,
            )
            self._journal.add(diagnosis)
            found[diagnosis.key] = diagnosis

        # a set-up that failed is tried again by the next build: it is recorded at once, not when all are built
        def failed(entry: ManifestEntry) -> None:
            if entry.failure is not None:
                case = by_digest[entry.task_digest]
                record(case, entry, entry.failure, entry.set_up.reason, passed=False, seconds=entry.set_up.seconds)

        entries = self._store.build(
            [case.task for case in cases], jobs=self._jobs, progress=_Telling(self._progress, failed)
        )
        built = [(case, entry) for case, entry in zip(cases, entries, strict=True) if entry.failure is None]
        self._progress.start(len(built), "judged")
        pool = ThreadPoolExecutor(self._jobs, thread_name_prefix="diagnosis")
        try:
            futures = {pool.submit(self._judge, case, entry): (case, entry) for case, entry in built}
            for future in as_completed(futures):
                failure, reason, passed, seconds = future.result()
                record(*futures[future], failure, reason, passed=passed, seconds=seconds)
                self._progress.advance()
        except KeyboardInterrupt:
            self._driver.close()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
        return found

    def _judge(self, case: Case, entry: ManifestEntry) -> tuple[FailureClass | None, str, bool, float]:
        """Class, reason, whether it passed, and seconds."""
        began = time.monotonic()
        try:
            failure, reason = self._found(case, entry)
            passed = failure is None
        except Exception as error:  # noqa: BLE001 - a fault of ours must not cost the other rows their diagnosis
            failure, reason, passed = None, f"{type(error).__name__}: {error}", False
        return failure, reason, passed, round(time.monotonic() - began, 2)

    def _found(self, case: Case, entry: ManifestEntry) -> tuple[FailureClass | None, str]:
        if case.before_check is not None:
            case.before_check(entry)
        report = TaskReport(case.task.id, case.task.kind, built=True)
        gates = check_task(case.task, report, self._store, self._driver, runtime=())  # the same for all rows
        if gates.failure is not None and gates.failure.family is FailureFamily.INFRASTRUCTURE:
            return gates.failure, gates.reason
        audit = self._audit.check(case.task, entry)
        if audit.failure is not None:
            return audit.failure, audit.reason
        if audit.verdict is not None and audit.verdict.failure is not None:
            said_by_text = any(not line.startswith("on the ") for line in audit.verdict.evidence)
            if gates.failure is None or gates.failure.family is FailureFamily.TASK or said_by_text:
                return audit.verdict.failure, audit.verdict.evidence[0]
        if gates.failure is not None:
            return gates.failure, gates.reason
        if audit.outputs:
            return FailureClass.LEAKS, audit.outputs[0]
        if audit.findings:
            return FailureClass.RUNTIME, audit.findings[0]
        return self._replayed(case) if case.attempt else (None, "")

    def _replayed(self, case: Case) -> tuple[FailureClass | None, str]:
        """What an episode came to that took these commands and then submitted."""
        environment = TerminalEnvironment(
            case.task, lambda task: self._driver.backend(self._store.prepared(task).stack)
        )
        environment.reset()
        try:
            for command in (*case.attempt, SUBMIT_COMMAND):
                outcome = environment.step(command)
                if outcome.done:
                    break
        finally:
            environment.close()
        if outcome.reward:
            return None, ""
        return FailureClass.AGENT, f"the episode ended with reward 0 ({outcome.status or 'not submitted'})"


class _Telling(BuildProgress):
    """Passes on what a build tells, and calls ``done`` for each entry."""

    def __init__(self, inner: BuildProgress, done: Callable[[ManifestEntry], None]) -> None:
        self._inner = inner
        self._done = done

    def start(self, total: int, what: str = "prepared states") -> None:
        self._inner.start(total, what)

    def advance(self) -> None:
        self._inner.advance()

    def note(self, text: str) -> None:
        self._inner.note(text)

    def done(self, entry: ManifestEntry) -> None:
        self._done(entry)
        self._inner.advance()


def rung_of(records: Sequence[Diagnosis], seconds: float) -> Rung:
    """Counts over records."""
    classes = [record.failure.value for record in records if record.failure is not None]
    return Rung(
        rows=len(records),
        built=sum(record.built for record in records),
        passed=sum(record.passed for record in records),
        classified={name: classes.count(name) for name in sorted(set(classes))},
        unclassified=sum(record.unclassified for record in records),
        seconds=round(seconds, 1),
    )
