"""The stage behind ``leonardo gates``: open what the environment gates need, run them, show and write the outcome."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from leonardo.assets.progress import ConsoleProgress
from leonardo.assets.store import AssetStore
from leonardo.files import write_verdict
from leonardo.gates.environment import GateReport, TaskReport, run_gates
from leonardo.gates.leftovers import become_subreaper, belongings, left_over
from leonardo.sandbox.drivers import open_driver
from leonardo.site import load_site
from leonardo.tasks.rows import read_tasks


def gates_command(
    tasks_path: str | Path, out_path: Path, driver_name: str = "auto", jobs: int = 2, site: str | Path = "desk"
) -> int:
    """Run the environment gates on the rows at ``tasks_path`` and write ``out_path``. Returns the exit code."""
    console = Console()
    settings = load_site(site)
    tasks = read_tasks(tasks_path)
    root = settings.cache / "assets"
    become_subreaper()
    before = belongings((root / "deltas", root / "bases"))
    with open_driver(driver_name) as driver:
        if driver.degraded:
            console.print(f"driver {driver.name}, degraded: {driver.degraded}", markup=False, highlight=False)
        store = AssetStore(root, driver, settings)
        with ConsoleProgress(console) as progress:
            report = run_gates(tasks, store, driver, jobs=jobs, progress=progress)
    report.leftovers = left_over(before, (root / "deltas", root / "bases"))
    show(report, console)
    write_verdict(out_path, report.ok, report.figures, report.pins)
    console.print(f"written: {out_path}", markup=False, highlight=False)
    return 0 if report.ok else 1


def show(report: GateReport, console: Console) -> None:
    """Print the table, what stands in for base images, what was left over, and the verdict."""
    table = Table("task", "kind", "built", "null fails", "reference passes", "reset identical", "seconds", "why not")
    for task in report.tasks:
        marks = (task.built, task.null_fails, task.reference_passes, task.reset_identical)
        table.add_row(task.task_id, task.kind, *map(_mark, marks), f"{task.seconds:.1f}", _why(task))
    console.print(table)
    figures = report.figures
    for substitution in figures["substitutions"]:
        console.print(f"base image: {substitution}", markup=False, highlight=False)
    for entry in report.leftovers:
        console.print(f"left over: {entry}", markup=False, highlight=False)
    counts = ", ".join(
        f"{name.replace('_', ' ')} {figures[name]}"
        for name in ("rows", "built", "null_fails", "reference_passes", "reset_identical", "leftovers")
    )
    console.print(f"{'ok' if report.ok else 'NOT OK'}: {counts}", markup=False, highlight=False)


def _mark(value: bool | None) -> str:
    return {True: "yes", False: "[red]no[/red]", None: "-"}[value]


def _why(task: TaskReport) -> str:
    return f"{task.failure}: {task.reason}" if task.failure else ""
