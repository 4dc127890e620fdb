"""``leonardo transfer`` and ``leonardo card``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from leonardo.offline import stay_local
from leonardo.options import SEEDS, DriverName, Out, RunsOfOne, SiteName


def add_commands(app: typer.Typer) -> None:
    """Register both."""
    app.command("transfer")(transfer)
    app.command("card")(card)


def transfer(
    name: Annotated[str, typer.Option("--stage", help="The stage, or a .yaml file.")] = "transfer",
    seed: Annotated[
        int | None, typer.Option(min=0, max=SEEDS - 1, help="In place of the stage's; governs all but the rule.")
    ] = None,
    site: SiteName = "desk",
    driver: DriverName = "auto",
    out: Out = Path("out"),
    runs: RunsOfOne = Path("runs"),
) -> None:
    """What training on terminal tasks does to function calling, and the other way round. Goes on where it was."""
    stay_local()
    from leonardo.report.transfer import render_seeds, render_transfer
    from leonardo.stages.transfer import run_transfer
    from leonardo.stages.transferfile import load_transfer
    from leonardo.stages.transferseeds import run_seeds
    from leonardo.stages.verdicts import show
    from leonardo.tables import open_console

    console = open_console()
    where: dict[str, Any] = {"site": site, "driver_name": driver, "runs": runs, "out": out, "console": console}
    seeds = load_transfer(name).seeds if seed is None else (seed,)
    if len(seeds) == 1:
        outcome = run_transfer(name, seed=seeds[0], **where)
        show(outcome.findings, console)
        page = render_transfer(outcome)
    else:
        outcome = run_seeds(name, **where)
        for each in outcome.outcomes:
            typer.echo(f"report: {render_transfer(each)}")
        page = render_seeds(outcome, out / f"{outcome.stage.name}.html")
    typer.echo(f"report: {page}")
    typer.echo(f"{'ok' if outcome.ok else 'NOT OK'}: {outcome.sentence}")
    raise typer.Exit(0 if outcome.ok else 1)


def card(
    checkpoint: Annotated[Path, typer.Argument(help="A checkpoint's folder, inside its run's.")],
    runs: Annotated[Path, typer.Option(help="Folder with the ledger.")] = Path("runs"),
    served: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Write the form that vLLM serves, in bfloat16 and with a card, to FOLDER/start "
            "(Qwen3.5: FOLDER/start-qwen3.5; upstream knows the family by the name).",
        ),
    ] = None,
) -> None:
    """A checkpoint's model card (README.md beside it), from the run's records and the ledger."""
    stay_local()
    from leonardo.evidence import LEDGER
    from leonardo.report.card import write_card

    for written in write_card(checkpoint, runs / LEDGER, served):
        typer.echo(f"written: {written}")
