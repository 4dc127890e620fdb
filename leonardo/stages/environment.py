"""The stage behind ``leonardo gates``: open what the environment gates need, run them, show and write the outcome."""

from pathlib import Path

from rich.console import Console
from rich.table import Table

from leonardo.assets.progress import ConsoleProgress, say
from leonardo.assets.store import AssetStore
from leonardo.files import require_writable, write_verdict
from leonardo.gates.environment import GateReport, run_gates
from leonardo.gates.leftovers import become_subreaper, belongings, left_over, own_temporary_folder
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
    with own_temporary_folder():
        before = belongings(root)
        with open_driver(driver_name) as driver:
            for folder in (out_path.parent, root):
                require_writable(folder)
            if driver.degraded:
                say(console, f"driver {driver.name}, degraded: {driver.degraded}")
            with ConsoleProgress(console) as progress:
                store = AssetStore(root, driver, settings)
                report = run_gates(tasks, store, driver, jobs=jobs, progress=progress)
        report.leftovers = left_over(before, root)
    show(report, console)
    write_verdict(out_path, report.ok, report.figures, report.pins)
    say(console, f"written: {out_path}")
    return 0 if report.ok else 1


def show(report: GateReport, console: Console) -> None:
    """Print the table, what stands in for base images, what was left over, and the verdict."""
    table = Table()
    table.add_column("task", no_wrap=True)
    for name in ("kind", "built", "null fails", "reference passes", "reset identical", "runtime works", "seconds"):
        table.add_column(name)
    for task in report.tasks:
        marks = (task.built, task.null_fails, task.reference_passes, task.reset_identical, task.runtime_works)
        table.add_row(task.task_id, task.kind, *map(_mark, marks), f"{task.seconds:.1f}")
    console.print(table)
    figures = report.figures
    for task in report.tasks:
        if task.failure is not None:
            say(console, f"{task.task_id}: {task.failure}: {task.reason}")
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
