"""The options that several commands of ``leonardo launch`` take; "" and 0 leave a thing to the files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from leonardo.options import Force, Python, Seed, SiteName, Tree

PROJECT = Path(__file__).parents[2]


@dataclass(frozen=True)
class QueueOptions:
    """Where a job is queued, and on whose account."""

    site: SiteName = "leonardo"
    account: Annotated[str, typer.Option(help="Whom the time is charged to, in place of the site's.")] = ""
    quality: Annotated[str, typer.Option("--qos", help="QOS in place of the first that takes the job.")] = ""
    pool: Annotated[str, typer.Option(help="Kind of node in place of the stage's.")] = ""
    minutes: Annotated[int, typer.Option(min=0, help="Wall time in place of the stage's.")] = 0


@dataclass(frozen=True)
class StageOptions(QueueOptions):
    """What a stage's job is, besides."""

    model: Annotated[str, typer.Option(help="Model of launch/models in place of the stage's.")] = ""
    engine: Annotated[str, typer.Option(help="desk, or upstream.")] = ""
    seed: Seed = 1
    sandbox_pool: Annotated[str, typer.Option(help="Kind of node that sandboxes get for themselves.")] = ""
    sandbox_nodes: Annotated[int, typer.Option(min=0, help="How many such nodes.")] = 0
    shape: Annotated[str, typer.Option(help="Shape of the model in place of the one for the site's GPUs.")] = ""
    force: Force = ""
    upstream: Tree = PROJECT / "upstream"
    upstream_python: Python = PROJECT / ".venv-upstream/bin/python"
