"""The stage behind ``leonardo doctor``: which sandbox drivers this machine allows, and what is missing where not."""

from pathlib import Path

from rich.console import Console

from leonardo.files import require_writable, write_verdict
from leonardo.sandbox.drivers import Finding, survey

_WORDS = {
    "serves": "[green]yes[/green]      ",
    "degraded": "[yellow]degraded[/yellow] ",
    "refused": "[red]no[/red]       ",
}


def doctor_command(out_path: Path) -> int:
    """Try every driver, print a line for each, write ``out_path``. Returns 0 where at least one driver serves."""
    require_writable(out_path.parent)
    console = Console()
    findings = survey()
    for label, finding in findings.items():
        console.print(_WORDS[_state(finding)], end="")
        note = f": {finding.note}" if finding.note else ""
        console.print(f"{label}{note}", markup=False, highlight=False, soft_wrap=True)
    serving = [label for label, finding in findings.items() if finding.serves]
    if not serving:
        console.print("No sandboxes can be run here. Allow user namespaces, or install Apptainer: make apptainer")
    drivers = {label: {"state": _state(finding), "note": finding.note} for label, finding in findings.items()}
    write_verdict(out_path, bool(serving), {"drivers": drivers, "serving": serving}, {})
    return 0 if serving else 1


def _state(finding: Finding) -> str:
    if not finding.serves:
        return "refused"
    return "degraded" if finding.note else "serves"
