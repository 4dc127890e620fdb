"""The stage behind ``leonardo diagnose``: the ladder over rows or over the corpus with planted faults."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from leonardo.assets.compat import load_rules, rules_digest
from leonardo.assets.manifest import ManifestEntry
from leonardo.assets.plan import SET_UP_TIMEOUT
from leonardo.assets.progress import ConsoleProgress, say
from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InputError
from leonardo.files import require_writable, write_atomic, write_verdict
from leonardo.gates.diagnosis import Case, Diagnosis, Journal, Ladder, Rung, read_records, rung_of
from leonardo.gates.leftovers import become_subreaper
from leonardo.gates.repairs import repairs_page
from leonardo.sandbox.drivers import open_driver
from leonardo.site import load_site
from leonardo.tables import Table, open_console
from leonardo.tasks.desk.planted import CorpusTask, corpus
from leonardo.tasks.rows import read_tasks
from leonardo.tasks.task import Task

FOLDER = "diagnose"
RECORDS = "records.jsonl"
REPAIRS = "REPAIRS.md"


def diagnose_command(
    rows: Path | None,
    out_path: Path,
    runs: Path,
    *,
    count: int = 300,
    seed: int = 1,
    site: str | Path = "desk",
    driver_name: str = "auto",
    jobs: int = 2,
    with_rules: bool = True,
    packages: bool = True,
    timeout: float = SET_UP_TIMEOUT,
) -> int:
    """Diagnose the first ``count`` rows at ``rows``, or a corpus with planted faults, and write ``out_path``.

    Without rules only the rows that a rule would touch are diagnosed, for the repair log's *before*.

    Returns the exit code: 0 where every row passed or has a class, and, of the corpus, the class that was planted.
    """
    console = open_console()
    settings = load_site(site)
    rules = load_rules() if with_rules else ()
    root, folder = settings.cache / "assets", runs / FOLDER
    known = [] if rows else corpus(seed, count, packages=packages)
    tasks = read_tasks(rows, limit=count) if rows else [entry.task for entry in known]
    for place in (out_path.parent, root, folder):
        require_writable(place)
    become_subreaper()
    with open_driver(driver_name) as driver, Journal(folder / RECORDS) as journal:
        store = AssetStore(root, driver, settings, rules=rules, timeout=timeout)
        cases = [_case(entry, store) for entry in known] or [Case(task) for task in tasks]
        if not with_rules:
            ruled = AssetStore(root, driver, settings)
            cases, known = [case for case in cases if _is_touched(case.task, ruled)], []
        pins = {"driver": driver.name, "degraded": driver.degraded, "site": settings.name, "rules": rules_digest(rules)}
        if driver.degraded:
            say(console, f"driver {driver.name}, degraded: {driver.degraded}")
        with ConsoleProgress(console) as progress:
            ladder = Ladder(store, driver, journal, pins, with_rules=with_rules, jobs=jobs, progress=progress)
            climbed: list[Rung] = []
            records: list[Diagnosis] = []
            for rung, found in ladder.climb(cases):
                climbed.append(rung)
                records = found
                say(console, _line(rung))
    ok, figures = _figures(climbed, records, len(cases), {entry.task.id: entry.fault for entry in known})
    _show(records, console)
    write_repairs(folder / RECORDS, folder / REPAIRS)
    say(console, f"{'ok' if ok else 'NOT OK'}: {_summary(figures)}")
    write_verdict(out_path, ok, figures, pins | ({} if rows else {"corpus": {"seed": seed, "count": count}}))
    say(console, f"written: {out_path}, {folder / REPAIRS}")
    return 0 if ok else 1


def write_repairs(records: Path, page: Path) -> None:
    """Write the repair log of a journal."""
    write_atomic(page, repairs_page(read_records(records), load_rules()))


def _case(entry: CorpusTask, store: AssetStore) -> Case:
    return Case(entry.task, entry.attempt, _damaging(store) if entry.damaged else None)


def _is_touched(task: Task, store: AssetStore) -> bool:
    """Whether a rule of ``store`` applies to a task."""
    try:
        return bool(store.adapted(task).adaptation.applied)
    except InputError:  # a definition that is not honoured
        return False


def _damaging(store: AssetStore) -> Callable[[ManifestEntry], None]:
    """Cuts a delta's archive short, as a full or failing disk does."""

    def damage(entry: ManifestEntry) -> None:
        digest = entry.set_up.delta
        stored = store.archives.compressed(digest)
        if isinstance(stored, Path):
            stored.write_bytes(stored.read_bytes()[:-8])
        else:
            store.catalogue.put_layer(digest, stored[:-8])

    return damage


def _figures(
    climbed: Sequence[Rung], records: Sequence[Diagnosis], wanted: int, planted: dict[str, FailureClass | None]
) -> tuple[bool, dict[str, Any]]:
    last = climbed[-1] if climbed else rung_of([], 0)
    figures: dict[str, Any] = asdict(last) | {
        "rungs": [asdict(rung) for rung in climbed],
        "finished": last.rows == wanted,
        "unclassified_rows": [f"{record.task_id}: {record.reason}" for record in records if record.unclassified],
    }
    ok = figures["finished"] and not last.unclassified
    if planted:
        wrong = [record for record in records if record.failure is not planted[record.task_id] or record.unclassified]
        figures |= {
            "planted": sum(fault is not None for fault in planted.values()),
            "planted_right": sum(planted[record.task_id] is not None for record in records if record not in wrong),
            "false_alarms": sum(planted[record.task_id] is None for record in wrong),
            "wrong": [
                f"{record.task_id}: {planted[record.task_id]} planted, {record.failure} found: {record.reason}"
                for record in wrong
            ],
        }
        ok = ok and not wrong
    return ok, figures


def _line(rung: Rung) -> str:
    classes = ", ".join(f"{name} {count}" for name, count in rung.classified.items()) or "none"
    return f"rung of {rung.rows}: built {rung.built}, passed {rung.passed}, failures: {classes} ({rung.seconds:.0f} s)"


def _show(records: Sequence[Diagnosis], console: Console) -> None:
    table = Table("class", "family", "rows", "first row", "reason")
    for failure in [*FailureClass, None]:
        hit = [record for record in records if not record.passed and record.failure is failure]
        if hit:
            name, family = (failure.value, failure.family.value) if failure else ("unclassified", "ours")
            table.add_row(name, family, str(len(hit)), hit[0].task_id, hit[0].reason)
    if table.row_count:
        console.print(table)


def _summary(figures: dict[str, Any]) -> str:
    names = ("rows", "built", "passed", "unclassified", "planted", "planted_right", "false_alarms")
    counts = ", ".join(f"{name.replace('_', ' ')} {figures[name]}" for name in names if name in figures)
    early = "" if figures["finished"] else "; the ladder ended early: the machine is at fault"
    return "\n".join([counts + early, *figures.get("wrong", []), *figures["unclassified_rows"]])
