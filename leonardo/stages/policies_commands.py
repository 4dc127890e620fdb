"""``leonardo evaluate policies`` and ``join``: checkpoints on held-out rows, in one piece or in parts."""

from pathlib import Path
from typing import Annotated

import typer

from leonardo.errors import InputError
from leonardo.options import DriverName, RowOptions, SiteName, with_sets
from leonardo.tables import open_console

Checkpoints = Annotated[list[str], typer.Argument(help="Folders of policies; NAME=FOLDER calls one NAME in records.")]
Tasks = Annotated[Path, typer.Option(help="Held-out rows: a JSONL or Parquet file or a folder.")]
Parts = Annotated[int, typer.Option(min=1, help="Parts that each policy's evaluation is made in.")]
Attempts = Annotated[int, typer.Option(min=1, help="Attempts a task.")]
Bounds = Annotated[str, typer.Option(help="Bounds of an episode: desk or reference.")]
Turns = Annotated[int | None, typer.Option(min=1, help="Turns of an episode, where the bounds' do not fit.")]
TurnTokens = Annotated[int | None, typer.Option(min=1, help="Tokens of a turn.")]
EvaluationSeed = Annotated[int, typer.Option(min=0, help="Decides the attempts' own seeds.")]


@with_sets
def policies_command(
    checkpoints: Checkpoints,
    tasks: Tasks,
    which: RowOptions,
    attempts: Attempts = 1,
    bounds: Bounds = "desk",
    turns: Turns = None,
    turn_tokens: TurnTokens = None,
    seed: EvaluationSeed = 20_000,
    parts: Parts = 1,
    shard: Annotated[str, typer.Option(help="k/n: of all policies' parts the k-th, (k+n)-th ...: a job's.")] = "",
    unpacked_gib: Annotated[float, typer.Option(min=0.1, help="What unpacked layers may take here.")] = 20.0,
    site: SiteName = "desk",
    driver: DriverName = "auto",
    out: Annotated[Path, typer.Option(help="Folder for the records, one a policy or a part.")] = Path("out"),
) -> None:
    """Policies in this process, in our sandboxes and harness; writes a record each, or a record each part."""
    from dataclasses import replace

    from leonardo.assets.selection import read_chosen
    from leonardo.stages.endpoint import BOUNDS
    from leonardo.stages.policies import PoliciesRun, checkpoints_of, evaluate_policies, put_together

    if bounds not in BOUNDS:
        raise InputError(f"there are no bounds {bounds}", f"Bounds: {', '.join(BOUNDS)}")
    changed = {"steps": turns, "turn_tokens": turn_tokens}
    named = checkpoints_of(checkpoints)
    run = PoliciesRun(
        checkpoints=named,
        settings=replace(BOUNDS[bounds], **{key: value for key, value in changed.items() if value is not None}),
        out=out,
        parts=parts,
        shard=shard,
        attempts=attempts,
        seed=seed,
        unpacked=unpacked_gib,
    )
    chosen = read_chosen(tasks, which)
    run.pieces()
    console = open_console()
    evaluate_policies(run, chosen, site=site, driver_name=driver, console=console)
    if not shard:
        put_together(out, [checkpoint.name for checkpoint in named], console)


def join_command(
    folder: Annotated[Path, typer.Argument(help="Folder with the records of all parts.")],
    names: Annotated[list[str] | None, typer.Argument(help="Policies; all that have parts there if not given.")] = None,
) -> None:
    """The parts of each policy's evaluation as one record. Refuses missing, doubled and differing parts."""
    from leonardo.stages.policies import put_together

    found = names or sorted(
        {path.stem.removeprefix("evaluation-").rpartition("-part-")[0] for path in folder.glob("*-part-*-of-*.json")}
    )
    if not found:
        raise InputError(f"{folder} has no parts of evaluations", "leonardo evaluate policies --parts writes them")
    put_together(folder, found, open_console())
