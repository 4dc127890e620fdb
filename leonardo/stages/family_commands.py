"""The command line of model families."""

from pathlib import Path
from typing import Annotated

import typer

from leonardo.options import Out

families_app = typer.Typer(name="families", help="Model families: formats, templates and tokens as data.")


@families_app.callback()
def _families() -> None:
    """Model families: formats, templates and tokens as data."""


@families_app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Families, names or .yaml files; all by default.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the fuzz.")] = 1,
    count: Annotated[int, typer.Option(min=1, help="Fuzzed commands a family.")] = 2000,
    upstream_python: Annotated[
        Path | None,
        typer.Option(envvar="LEONARDO_UPSTREAM_PYTHON", help="A Python with vLLM, to compare parsers with."),
    ] = None,
    tokenizer: Annotated[
        list[str] | None, typer.Option(help="FAMILY=FOLDER: check with this model's tokenizer. May be repeated.")
    ] = None,
    out: Out = Path("out"),
) -> None:
    """Round trips, damaged calls, masks, and agreement with vLLM's parsers."""
    from leonardo.stages.families import check_command

    code = check_command(
        names or (),
        out / "families.json",
        seed=seed,
        count=count,
        python=upstream_python,
        tokenizers=tokenizer or (),
    )
    raise typer.Exit(code)
