"""The stage behind ``leonardo audit``: what is in the prepared states, and which rows are of use."""

from collections.abc import Collection, Sequence
from pathlib import Path

from rich.console import Console

from leonardo.assets.progress import ConsoleProgress, say
from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InputError
from leonardo.files import require_writable, write_atomic, write_verdict
from leonardo.gates.audit import AuditReport, figures_of, run_audit
from leonardo.gates.leftovers import become_subreaper
from leonardo.gates.verdicts import FILE, read_verdicts, selectable, update_verdicts
from leonardo.sandbox.drivers import open_driver
from leonardo.site import load_site
from leonardo.stages.gate import Selection, record_gate
from leonardo.tables import Table, open_console

SHOWN = 10
"""Findings of a task that are printed; all of them are written."""


USABLE = "usable.txt"
"""Beside the machine-readable verdict: ids of the rows that a training run may take, one a line (``--ids-file``)."""


def audit_command(
    selection: Selection,
    out_path: Path,
    driver_name: str = "auto",
    jobs: int = 2,
    site: str | Path = "desk",
    also: Collection[str] = (),
    runs: Path | None = None,
) -> int:
    """Audit the selected rows; write ``out_path``, the verdicts in the asset store, and which rows are of use.

    Args:
        also: classes of verdicts whose rows are taken all the same.
        runs: where the verdict is kept, too, and gets an entry in the ledger.

    Returns:
        The exit code: 0 where every audit is clean, whatever the verdicts.
    """
    console = open_console()
    asked_for = [class_of(name) for name in also]
    settings = load_site(site)
    tasks = selection.tasks()
    root = settings.cache / "assets"
    become_subreaper()
    with open_driver(driver_name) as driver, ConsoleProgress(console) as progress:
        for folder in (out_path.parent, root, *((runs,) if runs is not None else ())):
            require_writable(folder)
        reports, pins = run_audit(tasks, AssetStore(root, driver, settings), driver, jobs=jobs, progress=progress)
    update_verdicts(root / FILE, [report.verdict for report in reports if report.verdict])
    audited = {report.task_id for report in reports if report.failure is None}
    usable = selectable([task for task in tasks if task.id in audited], read_verdicts(root / FILE), asked_for)
    write_atomic(out_path.with_name(USABLE), "".join(f"{task.id}\n" for task in usable))
    ok = all(report.clean for report in reports)
    _show(reports, console)
    figures = figures_of(reports)
    write_verdict(out_path, ok, figures, pins)
    if runs is not None:
        lost = sum(report.failure is not None for report in reports)
        found = sum(bool(report.findings) for report in reports)
        says = f"{len(reports) - lost - found} of {len(reports)} prepared states hold nothing that may not be there"
        asked = {"tasks with a finding": found, "tasks not audited": lost}
        record_gate("audit", says, asked, figures, pins, site=settings.name, runs=runs, console=console)
    say(console, f"written: {out_path}, {out_path.with_name(USABLE)}, {root / FILE}")
    return 0 if ok else 1


def _show(reports: Sequence[AuditReport], console: Console) -> None:
    table = Table()
    table.add_column("task")
    for name in ("searched", "leaks", "outputs", "secrets", "layers", "listed", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    for report in reports:
        listed = len(report.literals) + len(report.set_id) + len(report.world_writable) + len(report.not_searched)
        counts = (report.searched, *(len(part) for part in (report.leaks, report.outputs, report.secrets)))
        verdict = report.verdict.failure or "of use" if report.verdict else "-"
        table.add_row(
            report.task_id, *map(str, (*counts, len(report.layers), listed)), f"{report.seconds:.0f}", verdict
        )
    console.print(table)
    for report in reports:
        if report.failure is not None:
            say(console, f"{report.task_id}: {report.failure}: {report.reason}")
        for finding in report.findings[:SHOWN]:
            say(console, f"{report.task_id}: {finding}")
        if len(report.findings) > SHOWN:
            say(console, f"{report.task_id}: and {len(report.findings) - SHOWN} more")
        if report.verdict and report.verdict.failure:
            say(console, f"{report.task_id}: left out: {report.verdict.failure}: {report.verdict.evidence[0]}")
    clean = sum(report.clean for report in reports)
    usable = sum(report.verdict is not None and report.verdict.failure is None for report in reports)
    counts = f"rows {len(reports)}, clean {clean}, of use {usable}"
    say(console, f"{'ok' if clean == len(reports) else 'NOT OK'}: {counts}")


def class_of(name: str) -> FailureClass:
    """The class of failure called ``name``. Raises InputError where there is none."""
    try:
        return FailureClass(name)
    except ValueError as error:
        raise InputError(f"{name!r} is no class of failure", "leonardo failures lists them") from error
