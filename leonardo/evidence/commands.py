"""``leonardo evidence show|verify|explain``."""

from pathlib import Path
from typing import Annotated

import typer

from leonardo.errors import InputError
from leonardo.evidence.audit import check
from leonardo.evidence.explain import explain
from leonardo.evidence.ledger import LEDGER, read

evidence_app = typer.Typer(name="evidence", help="The ledger: all evidence, chained, with its pins and records.")

Ledger = Annotated[Path, typer.Option(help="A ledger, or the folder that has it.")]


@evidence_app.command("show")
def show_command(ledger: Ledger = Path("runs")) -> None:
    """The entries, a line each."""
    for number, entry in enumerate(read(_ledger(ledger)), 1):
        where = ", ".join(str(part) for part in (entry.pins.get("engine"), entry.site) if part)
        verdict = entry.verdict + " (stained)" * bool(entry.stains)
        words = [str(number), entry.time[:16], verdict, entry.name, f"({where})" * bool(where), entry.says]
        typer.echo(" ".join(" ".join(words).split()))


@evidence_app.command("verify")
def verify_command(ledger: Ledger = Path("runs")) -> None:
    """Check every entry, the chain and the records that are still there; name the entry of an edit."""
    path = _ledger(ledger)
    found = check(path)
    for fault in found.faults:
        typer.echo(f"EDITED: {fault}")
    for note in found.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"{'ok' if found.ok else 'NOT OK'}: {path}: {found.counted}, head {found.head}")
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
