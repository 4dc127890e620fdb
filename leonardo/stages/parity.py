"""The stage behind ``leonardo parity``: prepared states against full images, a table, and every difference."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from leonardo.assets.progress import ConsoleProgress, say
from leonardo.assets.store import AssetStore
from leonardo.files import require_writable, write_verdict
from leonardo.gates.leftovers import become_subreaper
from leonardo.gates.parity import ParityReport, figures_of, run_parity
from leonardo.gates.volatile import load_volatile
from leonardo.sandbox.drivers import open_driver
from leonardo.site import load_site
from leonardo.stages.gate import Selection, record_gate
from leonardo.tables import Table, open_console

SHOWN = 10
"""Differences of a task that are printed; all of them are written."""


def parity_command(
    selection: Selection,
    out_path: Path,
    driver_name: str = "auto",
    jobs: int = 1,
    site: str | Path = "desk",
    runs: Path | None = None,
) -> int:
    """Compare the selected rows with full images and write ``out_path``. Returns the exit code.

    Where ``runs`` is given, the verdict is kept there, too, and gets an entry in its ledger.
    """
    console = open_console()
    settings = load_site(site)
    volatile = load_volatile()
    tasks = selection.tasks()
    root = settings.cache / "assets"
    become_subreaper()
    with open_driver(driver_name) as driver, ConsoleProgress(console) as progress:
        for folder in (out_path.parent, root):
            require_writable(folder)
        store = AssetStore(root, driver, settings)
        reports, pins = run_parity(tasks, store, driver, settings, volatile, jobs=jobs, progress=progress)
    ok = all(report.ok for report in reports)
    _show(reports, console)
    figures = figures_of(reports)
    write_verdict(out_path, ok, figures, pins)
    if runs is not None:
        bad = [report for report in reports if not report.ok]
        says = f"{len(reports) - len(bad)} of {len(reports)} prepared states behave as their full images"
        record_gate(
            "parity",
            says,
            {"tasks that differ": len(bad)},
            figures,
            pins,
            site=settings.name,
            runs=runs,
            console=console,
        )
    say(console, f"written: {out_path}")
    return 0 if ok else 1


def _show(reports: Sequence[ParityReport], console: Console) -> None:
    table = Table()
    table.add_column("task")
    for name in ("kind", "entries", "differences", "allowed", "initial", "reference"):
        table.add_column(name)
    for name in ("full MB", "delta kB", "full s", "prepared s", "check s"):
        table.add_column(name, justify="right")
    for report in reports:
        table.add_row(
            report.task_id,
            report.kind,
            str(report.entries),
            "-" if report.failure else str(len(report.differences)),
            str(sum(report.allowed.values())),
            report.verdicts.get("initial", "-"),
            report.verdicts.get("reference", "-"),
            f"{report.full_megabytes:.0f}",
            f"{report.delta_kilobytes:.0f}",
            f"{report.full_seconds:.0f}",
            f"{report.prepared_seconds:.0f}",
            f"{report.check_seconds:.0f}",
        )
    console.print(table)
    for report in reports:
        if report.failure is not None:
            say(console, f"{report.task_id}: {report.failure}: {report.reason}")
            continue
        for difference in report.differences[:SHOWN]:
            say(console, f"{report.task_id}: {difference}")
        if len(report.differences) > SHOWN:
            say(console, f"{report.task_id}: and {len(report.differences) - SHOWN} more")
    clean = sum(report.ok for report in reports)
    say(console, f"{'ok' if clean == len(reports) else 'NOT OK'}: rows {len(reports)}, clean {clean}")
