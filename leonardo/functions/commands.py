"""``leonardo functions``: the function-calling rows, their split, and whether the package's verdicts hold here."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from leonardo.options import Out

functions_app = typer.Typer(name="functions", help="Function-calling tasks: rows and checkers of bfcl-eval.")


@functions_app.command("check")
def check(
    category: Annotated[list[str] | None, typer.Option(help="Only these categories; may be given again.")] = None,
    tool_format: Annotated[str, typer.Option("--format", help="How calls are written.")] = "hermes",
    sample: Annotated[int, typer.Option(min=0, help="At most so many rows of a category; 0 for all.")] = 0,
    out: Out = Path("out"),
) -> None:
    """The package's reference answers pass, and copies with one argument changed do not."""
    from leonardo.assets.progress import ConsoleProgress
    from leonardo.files import require_writable, write_verdict
    from leonardo.functions.check import check_rows
    from leonardo.functions.checkers import Checkers, package_pins
    from leonardo.functions.tasks import CATEGORIES, read_tasks
    from leonardo.rollout.formats import format_named
    from leonardo.tables import Table, open_console

    console = open_console()
    chosen = format_named(tool_format)
    require_writable(out)
    with Checkers() as checkers, ConsoleProgress(console) as bar:
        tasks = []
        for name in category or CATEGORIES:
            rows = read_tasks(checkers, [name])
            tasks += rows[:: max(1, len(rows) // sample)][:sample] if sample else rows
        bar.start(len(tasks), "checking rows")
        found = check_rows(tasks, checkers, chosen, lambda: bar.advance())
    table = Table("category", "rows", "references pass", "changed pass", "left out")
    for entry in found:
        able = entry.rows - len(entry.left_out)
        table.add_row(
            entry.category,
            str(entry.rows),
            f"{entry.reference_passes} of {able}",
            f"{len(entry.corrupted_passes)} of {entry.corrupted}",
            str(len(entry.left_out)),
        )
    console.print(table)
    for entry in found:
        lines = [*entry.left_out.items(), *((name, "no argument of it is heeded") for name in entry.unheeded)]
        lines += [(name, f"REFERENCE FAILS: {why}") for name, why in entry.reference_fails.items()]
        lines += [(name, "CHANGED COPY PASSES") for name in entry.corrupted_passes]
        for name, why in lines:
            typer.echo(f"  {name}: {why}")
    ok = all(entry.ok for entry in found)
    figures: dict[str, Any] = {entry.category: asdict(entry) for entry in found}
    write_verdict(out / "functions-check.json", ok, figures, package_pins() | {"format": chosen.name})
    typer.echo("ok" if ok else "NOT OK")
    raise typer.Exit(0 if ok else 1)


@functions_app.command("split")
def split(out: Out = Path("out")) -> None:
    """Which rows are held out, by category, and that none of them is known from training."""
    from leonardo.files import digest_of, write_verdict
    from leonardo.functions.checkers import Checkers, package_pins
    from leonardo.functions.tasks import CATEGORIES, leaks, read_tasks, split_tasks
    from leonardo.tables import Table, open_console

    with Checkers() as checkers:
        parts = split_tasks(read_tasks(checkers))
    leaked = leaks(parts["train"], parts["held-out"])
    table = Table("category", "train", "held out")
    counts = {
        category: {name: sum(task.kind == category for task in tasks) for name, tasks in parts.items()}
        for category in CATEGORIES
    }
    for category, count in counts.items():
        table.add_row(category, str(count["train"]), str(count["held-out"]))
    open_console().print(table)
    ids = sorted(task.id for task in parts["held-out"])
    figures = {"categories": counts, "leaks": leaked, "held_out": ids, "held_out_digest": digest_of(ids)}
    write_verdict(out / "functions-split.json", not leaked, figures, package_pins())
    typer.echo(f"held out: {len(ids)} rows, digest {digest_of(ids)[:16]}; leaks: {len(leaked)}")
    raise typer.Exit(1 if leaked else 0)
