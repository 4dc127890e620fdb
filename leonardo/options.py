"""Options and arguments that several commands take, each said once; a command gives its own default."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

SiteName = Annotated[str, typer.Option(help="Site file: a name in launch/sites or a path.")]
DriverName = Annotated[str, typer.Option(help="Sandbox driver: auto, or a name that leonardo doctor lists.")]
SEEDS = 2**32
"""How many seeds there are, from 0: what all generators of random numbers take."""

Seed = Annotated[int, typer.Option(min=0, max=SEEDS - 1, help="Governs tasks, model, sampling and statistics.")]
Force = Annotated[str, typer.Option(help="The reason for running without the evidence below; it stains the run.")]
Jobs = Annotated[int, typer.Option(min=1, help="Set-ups and checks that run at once.")]

# --- where things are written -----------------------------------------------------------------------------------------

Out = Annotated[Path, typer.Option(help="Folder for the machine-readable verdict.")]
Runs = Annotated[Path, typer.Option(help="Folder of the ledger.")]
RunsOfOne = Annotated[Path, typer.Option(help="Folder for the run's records and report.")]
RunsOfMany = Annotated[Path, typer.Option(help="Folder for the ledger, the runs' records and reports.")]

# --- which rows -------------------------------------------------------------------------------------------------------

Rows = Annotated[Path, typer.Argument(help="Rows: a JSONL or Parquet file or a folder.")]
First = Annotated[int | None, typer.Option(min=1, help="The first N rows.")]
IdsFile = Annotated[Path | None, typer.Option(help="Rows by their ids, one a line of a file.")]
Sample = Annotated[int | None, typer.Option(min=1, help="N rows, chosen by a hash of their ids.")]
Shard = Annotated[str, typer.Option(help="k/n: the k-th of n parts, for an array job.")]


@dataclass(frozen=True)
class RowOptions:
    """Those that every option leaves (:mod:`leonardo.assets.selection`); all if none is given."""

    first: First = None
    ids: Annotated[str | None, typer.Option(help="Rows by their ids, with commas between.")] = None
    ids_file: IdsFile = None
    sample: Sample = None


# --- upstream's trainer -----------------------------------------------------------------------------------------------

Engine = Annotated[str, typer.Option(help="desk, or upstream (upstream's trainer in its own environment).")]
Tree = Annotated[Path, typer.Option(help="Upstream's checkout, with the patch stack.")]
Python = Annotated[Path, typer.Option(help="Python of upstream's environment.")]

# --- options that come in sets ----------------------------------------------------------------------------------------


def with_sets(command: Callable[..., None]) -> Callable[..., None]:
    """``command`` as typer takes it: a parameter that is a dataclass gives way to its fields, an option each."""
    own = inspect.signature(command).parameters
    sets = {name: inspect.signature(own[name].annotation) for name in own if is_dataclass(own[name].annotation)}
    flat = [each for name in own for each in (sets[name].parameters.values() if name in sets else [own[name]])]
    signature = inspect.Signature(flat)

    @functools.wraps(command)
    def flattened(*given: Any, **named: Any) -> None:
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        values = bound.arguments
        for name, fields in sets.items():
            values[name] = own[name].annotation(**{field: values.pop(field) for field in fields.parameters})
        command(**values)

    flattened.__signature__ = signature  # type: ignore[attr-defined]
    return flattened
