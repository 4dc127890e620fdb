"""``leonardo launch ...``: stages as jobs of a cluster."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from leonardo.errors import InfrastructureError, InputError
from leonardo.jobs import slurm
from leonardo.options import DriverName, IdsFile, Out, Sample, SiteName, with_sets
from leonardo.stages.carry import bundle_command, unbundle_command
from leonardo.stages.launch_options import StageOptions

if TYPE_CHECKING:
    from leonardo.jobs.findings import Finding

_PATIENCE = 30.0
"""Seconds until a scheduler that did not answer is asked again."""

launch_app = typer.Typer(name="launch", help="Stages as Slurm jobs: render, check, submit, follow, collect.")

Stages = Annotated[list[str], typer.Argument(help="Stages of launch/stages or .yaml files; several make a chain.")]
Runs = Annotated[
    Path | None, typer.Option(help="Folder of runs and ledger; below the site's shared folder if not given.")
]
Folder = Annotated[Path | None, typer.Option(help="The run's folder in place of a new one (one stage only).")]
Wheels = Annotated[Path | None, typer.Option(help="Downloaded packages of upstream's environment.")]
After = Annotated[list[str] | None, typer.Option(help="Job ids that have to end well first.")]
Run = Annotated[Path, typer.Argument(help="A job's run folder, as submit names it.")]


@launch_app.command()
@with_sets
def render(
    stages: Stages,
    options: StageOptions,
    runs: Runs = None,
    folder: Folder = None,
) -> None:
    """Print the sbatch script; nothing is written, nothing asked."""
    from leonardo.stages.launch_ready import choices_of, ready_stages, unset_note

    chosen = choices_of(options)
    for number, ready in enumerate(ready_stages(stages, chosen, runs, folder, None, look=False)):
        if number == 0 and (note := unset_note(ready)):
            typer.echo(f"leonardo: {note}", err=True)
        typer.echo(ready.script, nl=False)


@launch_app.command()
@with_sets
def check(
    stages: Stages,
    options: StageOptions,
    runs: Runs = None,
    folder: Folder = None,
    wheels: Wheels = None,
    out: Out = Path("out"),
) -> None:
    """Everything that can be known before the queue: one line a finding; writes out/launch-check.json."""
    from leonardo.files import require_writable, write_verdict
    from leonardo.stages.launch_ready import check as check_ready
    from leonardo.stages.launch_ready import choices_of, ready_stages

    require_writable(out)
    chosen = choices_of(options)
    found: list[Finding] = []
    for ready in ready_stages(stages, chosen, runs, folder, wheels):
        own = check_ready(ready)
        found += own
        for finding in own:
            typer.echo(f"{ready.plan.name}: {finding}")
        if not own:
            asked = ready.plan.resources
            typer.echo(f"{ready.plan.name}: ok, {asked.nodes} nodes of {asked.partition} for {asked.minutes} minutes")
    figures: dict[str, Any] = {"findings": [vars(finding) for finding in found]}
    write_verdict(out / "launch-check.json", not found, figures, {"site": options.site, "stages": list(stages)})
    raise typer.Exit(1 if found else 0)


@launch_app.command()
@with_sets
def submit(
    stages: Stages,
    options: StageOptions,
    runs: Runs = None,
    folder: Folder = None,
    wheels: Wheels = None,
    after: After = None,
) -> None:
    """Check, write the run folder, queue the job. Of several stages each waits for the one before it to end well."""
    from leonardo.stages.launch_ready import choices_of, ready_stages, require, submit_all

    slurm.require_waitable(after or [])
    chosen = choices_of(options)
    ready = list(ready_stages(stages, chosen, runs, folder, wheels, after or []))
    require(ready)
    submit_all(ready, after or [])


@launch_app.command()
def data(
    rows: Annotated[Path, typer.Argument(help="Rows: a JSONL or Parquet file, or a folder of them.")],
    folder: Annotated[Path, typer.Argument(help="Where the data set goes; a new folder.")],
    stage: Annotated[
        str, typer.Option(help="The stage that it is for: how many calls an episode may make.")
    ] = "reproduce",
    site: SiteName = "leonardo",
    driver: DriverName = "auto",
    ids_file: IdsFile = None,
    sample: Sample = None,
    also: Annotated[str, typer.Option(help="Classes of verdicts to take all the same, with commas between.")] = "",
    out: Out = Path("out"),
) -> None:
    """ROWS as the data set of upstream's trainer, each with its prepared state; rows of no use are left out."""
    from leonardo.assets.selection import select, words
    from leonardo.stages.audit import class_of
    from leonardo.stages.dataset import write_data
    from leonardo.stages.definition import load_stage
    from leonardo.tables import open_console
    from leonardo.tasks.rows import read_tasks

    tasks = select(read_tasks(rows), ids_file=ids_file, sample=sample)
    episode = load_stage(stage).episode_settings()
    classes = [class_of(name) for name in words(also)]
    write_data(
        tasks, folder, out / "data.json", episode, site=site, driver_name=driver, also=classes, console=open_console()
    )


@launch_app.command()
def follow(
    run: Run,
    once: Annotated[bool, typer.Option("--once", help="Look once, and do not wait for the end.")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between looks.")] = 5.0,
    quiet: Annotated[bool, typer.Option("--quiet", help="Without the job's output.")] = False,
) -> None:
    """State, progress and output of a job until it ends. Exits 0 where it ended well or has not ended."""
    from leonardo.jobs.follow import look, new_output

    said, position, shown = "", -1, None
    while True:
        try:
            seen = look(run)
        except InfrastructureError as error:  # a controller that is away comes back
            if once or not said:
                raise
            typer.echo(f"leonardo: {error.what}", err=True)
            time.sleep(max(every, _PATIENCE))
            continue
        if seen.line() != said:
            said = seen.line()
            typer.echo(said)
        if seen.log is not None and not quiet:
            position = position if shown == seen.log else -1
            shown = seen.log
            text, position = new_output(seen.log, position)
            sys.stdout.write(text)
            sys.stdout.flush()
        if once or seen.ended:
            break
        time.sleep(every)
    raise typer.Exit(0 if all(not state.ended or state.name == "COMPLETED" for state in seen.states) else 1)


@launch_app.command()
def collect(
    run: Run,
    ledger: Annotated[Path | None, typer.Option(help="The ledger; the runs folder's if not given.")] = None,
) -> None:
    """Records and evidence of an ended job, whatever its end was; lets the folder go. Exits 1 where it ended badly."""
    from leonardo.evidence import LEDGER
    from leonardo.jobs.collect import collect as collect_job
    from leonardo.jobs.folder import EVIDENCE
    from leonardo.stages.launch_arrays import RECORDS
    from leonardo.stages.policies import put_together
    from leonardo.tables import open_console

    def join(plan: dict[str, Any]) -> None:
        if names := plan["pins"].get("checkpoints"):
            put_together(run / RECORDS, names, open_console())

    entries = ledger or run.parent / LEDGER
    found = collect_job(run, entries, join)
    figures = found["figures"]
    sentence = f"{figures['state']}, exit code {figures['exit_code']}, {figures['starts']} starts"
    typer.echo(f"{'ok' if found['ok'] else 'NOT OK'}: {sentence}{'' if found['ok'] else ': ' + found['reason']}")
    typer.echo(f"evidence: {run / EVIDENCE}{', records: ' + found['records'] if found['records'] else ''}")
    if found.get("again") and (run / "run.json").is_file():
        typer.echo("it was collected and judged before; nothing is entered again")
        raise typer.Exit(0 if found["ok"] else 1)
    judged = _judged(run, found, entries.parent)
    raise typer.Exit(0 if found["ok"] and judged else 1)


def _judged(run: Path, found: dict[str, Any], runs: Path) -> bool:
    """Show the verdict on the stage, where the job was one of upstream's trainer. Returns whether it is no other."""
    from leonardo.report.page import render_report
    from leonardo.stages.launch_verdict import judge
    from leonardo.stages.verdicts import show
    from leonardo.tables import open_console

    console = open_console()
    verdict = judge(run, found, runs, console)
    if verdict is None:
        return True
    show(verdict.findings, console)
    try:
        typer.echo(f"report: {render_report(run, verdict.title)}")
    except InputError as error:  # of what the trainer wrote, which has been judged
        typer.echo(f"report: none ({error.what})")
    for stain in verdict.stains:
        typer.echo(f"STAINED: {stain}")
    typer.echo(f"{ {'pass': 'ok', 'fail': 'NOT OK', 'open': 'OPEN'}[verdict.word] }: {verdict.sentence}")
    return verdict.word == "pass"


@launch_app.command()
def cancel(run: Run) -> None:
    """End a job, or take it from the queue."""
    from leonardo.jobs.folder import SCRIPT, read_plan

    job = str(read_plan(run).get("job", ""))
    if not job and not (forgotten := slurm.queued(run.absolute() / SCRIPT)):
        raise InputError(f"{run}: its job was never queued", "Remove the folder")
    if not job:  # submit was killed before it could note it
        for job in forgotten:
            slurm.cancel(job)
            typer.echo(f"job {job}, which was queued and not noted: asked to end; then leonardo launch collect {run}")
        return
    states = slurm.states(job)
    if states and all(state.ended for state in states):
        ends = ", ".join(sorted({state.name.lower() for state in states}))
        typer.echo(f"job {job}: it has ended ({ends}); nothing is done")
        return
    slurm.cancel(job)
    typer.echo(f"job {job}: asked to end; then leonardo launch collect {run}")


launch_app.command("bundle")(bundle_command)
launch_app.command("unbundle")(unbundle_command)
