"""``leonardo evidence show|verify|explain``."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from leonardo.errors import InputError
from leonardo.evidence.audit import check
from leonardo.evidence.explain import explain
from leonardo.evidence.ledger import LEDGER, read

evidence_app = typer.Typer(name="evidence", help="The ledger: all evidence, chained, with its pins and records.")

Ledger = Annotated[Path, typer.Option(help="A ledger, or the folder that has it.")]


@evidence_app.command("show")
def show_command(ledger: Ledger = Path("runs")) -> None:
    """The entries, a line each."""
    table = Table("entry", "time", "what", "verdict", "engine", "site", "says")
    for number, entry in enumerate(read(_ledger(ledger)), 1):
        verdict = entry.verdict if entry.verdict == "pass" else f"[red]{entry.verdict}[/red]"
        stain = " [red](stained)[/red]" if entry.stains else ""
        table.add_row(
            str(number), escape(entry.time[:16]), escape(entry.name), verdict + stain,
            escape(str(entry.pins.get("engine", ""))), escape(entry.site), escape(entry.says),
        )  # fmt: skip
    Console().print(table)


@evidence_app.command("verify")
def verify_command(ledger: Ledger = Path("runs")) -> None:
    """Check every entry, the chain and the records that are still there; name the entry of an edit."""
    path = _ledger(ledger)
    found = check(path)
    for note in found.notes:
        typer.echo(f"note: {note}")
    for fault in found.faults:
        typer.echo(f"EDITED: {fault}")
    counted = f"{found.entries} entries, {found.records} records rehashed, head {found.head}"
    typer.echo(f"{'ok' if found.ok else 'NOT OK'}: {path}: {counted}")
    raise typer.Exit(0 if found.ok else 1)


@evidence_app.command("explain")
def explain_command(
    number: Annotated[int, typer.Argument(min=0, help="Number of the entry; 0: the last.")] = 0,
    ledger: Ledger = Path("runs"),
) -> None:
    """An entry in words: what was found, on what, from which records, what it builds on."""
    entries = read(_ledger(ledger))
    if not 0 <= number <= len(entries) or not entries:
        raise InputError(f"{ledger} has no entry {number or 1}", f"It has {len(entries)} entries")
    typer.echo("\n".join(explain(entries, number or len(entries))))


def _ledger(place: Path) -> Path:
    path = place / LEDGER if place.is_dir() else place
    if not path.is_file():
        raise InputError(f"no ledger at {path}", "A gate or stage writes one: make smoke")
    return path
