"""``leonardo launch assets`` and ``evaluate``: arrays, a part a task."""

from pathlib import Path
from typing import Annotated

import typer

from leonardo.options import First, IdsFile, Sample, with_sets
from leonardo.stages.launch_commands import After, Runs, launch_app
from leonardo.stages.launch_options import QueueOptions
from leonardo.stages.policies_commands import Attempts, Bounds, Checkpoints, EvaluationSeed, Turns, TurnTokens

EVALUATE = "evaluate"


@launch_app.command()
@with_sets
def assets(
    rows: Annotated[Path, typer.Argument(help="Rows: a JSONL or Parquet file or a folder, seen by all nodes.")],
    queue: QueueOptions,
    parts: Annotated[int, typer.Option(min=1, help="Tasks of the array.")] = 4,
    runs: Runs = None,
) -> None:
    """Queue an array that builds the prepared states of ROWS, a part a task."""
    from leonardo.jobs.folder import name_folder
    from leonardo.jobs.render import render
    from leonardo.site import load_site
    from leonardo.stages.launch_arrays import plan_assets
    from leonardo.stages.launch_choices import cluster_of
    from leonardo.stages.launch_ready import Ready, choices_of, require, require_folder, submit_all

    chosen = choices_of(queue)
    settings = load_site(queue.site)
    require_folder("--runs", runs)
    folder = name_folder(runs or cluster_of(settings).roots.shared / "runs", "assets")
    plan = plan_assets(settings, rows.absolute(), parts, folder, chosen)
    ready = Ready(plan, render(plan), settings, queue.pool or next(iter(cluster_of(settings).pools)))
    require([ready])
    submit_all([ready])


@launch_app.command(EVALUATE)
@with_sets
def evaluate(
    checkpoints: Checkpoints,
    tasks: Annotated[Path, typer.Option(help="Held-out rows, seen by all nodes; built before: launch assets.")],
    queue: QueueOptions,
    parts: Annotated[int, typer.Option(min=1, help="Tasks of the array for each policy.")] = 4,
    attempts: Attempts = 1,
    bounds: Bounds = "desk",
    seed: EvaluationSeed = 20_000,
    first: First = None,
    ids_file: IdsFile = None,
    sample: Sample = None,
    turns: Turns = None,
    turn_tokens: TurnTokens = None,
    gpus: Annotated[int, typer.Option(min=-1, help="A task; -1 for one where the nodes have any.")] = -1,
    runs: Runs = None,
    folder: Annotated[Path | None, typer.Option(help="The run's folder; an ended job's, to go on.")] = None,
    render_only: Annotated[bool, typer.Option("--render", help="Print the script, and queue nothing.")] = False,
    after: After = None,
) -> None:
    """Queue an array that evaluates policies on held-out rows, a part of one a task; then launch collect joins them."""
    from leonardo.jobs import slurm
    from leonardo.jobs.folder import name_folder
    from leonardo.jobs.render import render
    from leonardo.site import load_site
    from leonardo.stages.launch_arrays import Evaluated, plan_evaluation
    from leonardo.stages.launch_choices import cluster_of
    from leonardo.stages.launch_ready import Ready, absolute, choices_of, require, require_folder, submit_all
    from leonardo.stages.policies import checkpoints_of

    slurm.require_waitable(after or [])
    chosen = choices_of(queue)
    settings = load_site(queue.site)
    options = {"--first": first, "--ids-file": ids_file and ids_file.absolute(), "--sample": sample}
    options |= {"--turns": turns, "--turn-tokens": turn_tokens}
    evaluated = Evaluated(
        checkpoints=checkpoints_of(checkpoints),
        rows=tasks.absolute(),
        parts=parts,
        attempts=attempts,
        seed=seed,
        bounds=bounds,
        selection=tuple(str(word) for option in options.items() if option[1] is not None for word in option),
        gpus=gpus,
    )
    require_folder("--folder" if folder else "--runs", folder or runs)
    place = folder or name_folder(runs or cluster_of(settings).roots.shared / "runs", EVALUATE)
    plan = plan_evaluation(settings, evaluated, absolute(place), chosen)
    ready = Ready(plan, render(plan), settings, queue.pool or next(iter(cluster_of(settings).pools)))
    if render_only:
        typer.echo(ready.script, nl=False)
        return
    require([ready])
    submit_all([ready], after or [])
