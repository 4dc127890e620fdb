"""The stage behind ``leonardo gates``: open what the environment gates need, run them, show and write the outcome."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console

from leonardo import evidence
from leonardo.assets.progress import ConsoleProgress, say
from leonardo.assets.store import AssetStore
from leonardo.files import require_writable, write_verdict
from leonardo.gates.environment import GateReport, run_gates
from leonardo.gates.leftovers import become_subreaper, belongings, left_over, own_temporary_folder
from leonardo.sandbox.drivers import open_driver
from leonardo.site import load_site
from leonardo.stages.gate import Selection, record_gate
from leonardo.tables import Table, open_console
from leonardo.tasks.desk import generate, write_rows

DESK_ROWS = 12
"""What the gates vouch for is the place; a dozen desk tasks take half a minute."""


def gates_command(
    selection: Selection,
    out_path: Path,
    driver_name: str = "auto",
    jobs: int = 2,
    site: str | Path = "desk",
    runs: Path | None = None,
) -> int:
    """Run the environment gates on the selected rows and write ``out_path``. Returns the exit code.

    Where ``runs`` is given, the verdict is kept there, too, and gets an entry in its ledger.
    """
    console = open_console()
    if runs is not None:
        evidence.require_whole(runs / evidence.LEDGER)
    settings = load_site(site)
    tasks = selection.tasks()
    root = settings.cache / "assets"
    become_subreaper()
    with own_temporary_folder():
        before = belongings(root)
        with open_driver(driver_name) as driver:
            for folder in (out_path.parent, root):
                require_writable(folder)
            if driver.degraded:
                say(console, f"driver {driver.name}, degraded: {driver.degraded}")
            with ConsoleProgress(console, failures=False) as progress:
                store = AssetStore(root, driver, settings)
                report = run_gates(tasks, store, driver, jobs=jobs, progress=progress)
        report.leftovers = left_over(before, root)
    show(report, console)
    pins = {**report.pins, "site": settings.name}
    write_verdict(out_path, report.ok, report.figures, pins)
    say(console, f"written: {out_path}")
    if runs is not None:
        _record(report, pins, settings.name, runs, console)
    return 0 if report.ok else 1


def desk_rows(runs: Path) -> Path:
    """A file of rows for the gates where there are none: desk tasks of as many families."""
    path = runs / "gates-rows.jsonl"
    write_rows(path, generate("train", DESK_ROWS, seed=0))
    return path


def _record(report: GateReport, pins: dict[str, Any], site: str, runs: Path, console: Console) -> None:
    failed = [task for task in report.tasks if not task.ok]
    says = f"{len(report.tasks) - len(failed)} of {len(report.tasks)} tasks can be built, reset and judged here"
    says += f"; {failed[0].task_id} cannot: {failed[0].reason}" if failed else ""
    asked = {
        "tasks that were not built": sum(not task.built for task in report.tasks),
        "verifiers that pass, or do not run, where nothing was done": _no(task.null_fails for task in report.tasks),
        "reference solutions that do not pass": _no(task.reference_passes for task in report.tasks),
        "resets that differ": _no(task.reset_identical for task in report.tasks),
        "runtimes that fail a check": _no(task.runtime_works for task in report.tasks),
        "tasks that failed a gate": len(failed),
        "leftovers": len(report.leftovers),
    }
    record_gate("gates", says, asked, report.figures, pins, site=site, runs=runs, console=console)


def _no(found: Iterable[bool | None]) -> int:
    return sum(value is False for value in found)


def show(report: GateReport, console: Console) -> None:
    """Print the table, what stands in for base images, what was left over, and the verdict."""
    table = Table()
    table.add_column("task")
    for name in ("kind", "built", "null fails", "reference passes", "reset identical", "runtime works", "seconds"):
        table.add_column(name)
    for task in report.tasks:
        marks = (task.built, task.null_fails, task.reference_passes, task.reset_identical, task.runtime_works)
        table.add_row(task.task_id, task.kind, *map(_mark, marks), f"{task.seconds:.1f}")
    console.print(table)
    figures = report.figures
    reasons: dict[str, list[str]] = {}
    for task in report.tasks:
        if task.failure is not None:
            reasons.setdefault(f"{task.failure}: {task.reason}", []).append(task.task_id)
    for reason, ids in reasons.items():
        say(console, f"{', '.join(ids)}: {reason}")
    for substitution in figures["substitutions"]:
        say(console, f"base image: {substitution}")
    for entry in report.leftovers:
        say(console, f"left over: {entry}")
    counts = ", ".join(
        f"{name.replace('_', ' ')} {figures[name]}"
        for name in ("rows", "built", "null_fails", "reference_passes", "reset_identical", "runtime_works", "leftovers")
    )
    say(console, f"{'ok' if report.ok else 'NOT OK'}: {counts}")


def _mark(value: bool | None) -> str:
    return {True: "yes", False: "[red]no[/red]", None: "-"}[value]
