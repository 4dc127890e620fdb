"""``leonardo gates``, ``parity``, ``audit``, ``diagnose``, ``repairs`` and ``compat``: what is known of rows here."""

from pathlib import Path
from typing import Annotated

import typer

from leonardo.options import DriverName, Jobs, Out, RowOptions, Rows, Runs, Shard, SiteName, with_sets

compat_app = typer.Typer(name="compat", help="Compat rules: what is done differently where a set-up meets a site.")


def add_gates(app: typer.Typer) -> None:
    """Register them."""
    for command in (gates, parity, audit, diagnose, repairs):
        app.command()(command)
    app.add_typer(compat_app)


@with_sets
def gates(
    which: RowOptions,
    tasks: Annotated[
        Path | None, typer.Argument(help="Rows: a JSONL or Parquet file or a folder; by default a few desk tasks.")
    ] = None,
    shard: Shard = "",
    site: SiteName = "desk",
    driver: DriverName = "auto",
    jobs: Jobs = 2,
    out: Out = Path("out"),
    runs: Runs = Path("runs"),
) -> None:
    """Environment gates: build, null run, reference solution, reset bit for bit, runtime, nothing left over."""
    from leonardo.stages.environment import desk_rows, gates_command
    from leonardo.stages.gate import Selection

    selection = Selection(tasks or desk_rows(runs), which, shard)
    code = gates_command(selection, out / "gates.json", driver_name=driver, jobs=jobs, site=site, runs=runs)
    raise typer.Exit(code)


@with_sets
def parity(
    tasks: Rows,
    which: RowOptions,
    shard: Shard = "",
    site: SiteName = "desk",
    driver: DriverName = "auto",
    jobs: Jobs = 1,
    out: Out = Path("out"),
    runs: Runs = Path("runs"),
) -> None:
    """Prepared states against full images that Apptainer builds from the whole definition."""
    from leonardo.stages.gate import Selection
    from leonardo.stages.parity import parity_command

    selection = Selection(tasks, which, shard)
    raise typer.Exit(
        parity_command(selection, out / "parity.json", driver_name=driver, jobs=jobs, site=site, runs=runs)
    )


@with_sets
def audit(
    tasks: Rows,
    which: RowOptions,
    shard: Shard = "",
    site: SiteName = "desk",
    driver: DriverName = "auto",
    jobs: Jobs = 2,
    out: Out = Path("out"),
    runs: Runs = Path("runs"),
    also: Annotated[list[str] | None, typer.Option(help="Take the rows of a verdict's class all the same.")] = None,
) -> None:
    """What is in the prepared states that may not be; and verdicts on the rows, kept in the asset store."""
    from leonardo.stages.audit import audit_command
    from leonardo.stages.gate import Selection

    selection = Selection(tasks, which, shard)
    code = audit_command(
        selection, out / "audit.json", driver_name=driver, jobs=jobs, site=site, also=also or (), runs=runs
    )
    raise typer.Exit(code)


def diagnose(
    rows: Annotated[Path | None, typer.Argument(help="Rows; by default a corpus with planted faults.")] = None,
    count: Annotated[int, typer.Option(min=1, help="At most so many rows.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Governs the corpus.")] = 1,
    site: SiteName = "desk",
    driver: DriverName = "auto",
    jobs: Jobs = 2,
    out: Out = Path("out"),
    runs: Annotated[Path, typer.Option(help="Folder for the records.")] = Path("runs"),
    without_rules: Annotated[
        bool, typer.Option("--without-rules", help="The rows that rules touch, as they are without.")
    ] = False,
    packages: Annotated[bool, typer.Option(help="The corpus has rows that need a package mirror.")] = True,
) -> None:
    """The ladder: build, gates, audit; one class for each row that fails. Goes on where it was ended."""
    from leonardo.stages.diagnose import diagnose_command

    code = diagnose_command(
        rows,
        out / ("diagnose-without-rules.json" if without_rules else "diagnose.json"),
        runs,
        count=count,
        seed=seed,
        site=site,
        driver_name=driver,
        jobs=jobs,
        with_rules=not without_rules,
        packages=packages,
    )
    raise typer.Exit(code)


def repairs(
    runs: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("runs"),
    page: Annotated[Path, typer.Option(help="What to write.")] = Path("REPAIRS.md"),
) -> None:
    """The repair log, from the records of diagnoses."""
    from leonardo.stages.diagnose import FOLDER, RECORDS, write_repairs

    write_repairs(runs / FOLDER / RECORDS, page)
    typer.echo(f"written: {page}")


@compat_app.command("list")
def compat_list() -> None:
    """Every rule: what it is about, what it does, where it applies."""
    from leonardo.stages.compat import list_command

    raise typer.Exit(list_command())


@compat_app.command("explain")
def compat_explain(
    task: Annotated[str, typer.Argument(help="Id of a row.")],
    rows: Annotated[Path, typer.Option(help="The file or folder that has it.")],
    site: SiteName = "desk",
    driver: DriverName = "auto",
) -> None:
    """Which rules apply to a row here, and why."""
    from leonardo.stages.compat import explain_command

    raise typer.Exit(explain_command(task, rows, site=site, driver_name=driver))
