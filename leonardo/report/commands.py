"""``leonardo stage run NAME``, ``leonardo stage plan``, and ``leonardo report`` of the ladder, a run, or two runs."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from leonardo.errors import InputError
from leonardo.offline import stay_local
from leonardo.options import DriverName, Engine, Force, Out, Python, RunsOfMany, Seed, SiteName, Tree, with_sets
from leonardo.tables import Table, open_console

if TYPE_CHECKING:
    from leonardo.stages.asked import Asked

PROJECT = Path(__file__).parents[2]

OUT = Path("out")
"""Folder of pages that belong to no one run."""

stage_app = typer.Typer(name="stage", help="The ladder: a stage opens on a pass of the one before, with the same pins.")

Policy = Annotated[
    Path | None, typer.Option(help="Start from this desk policy (a Hugging Face folder), not from a warm start.")
]


@dataclass(frozen=True)
class LadderOptions:
    """Which ladder: with what its stages run, and where the records are."""

    engine: Engine = "desk"
    seed: Seed = 1
    site: SiteName = "desk"
    driver: DriverName = "auto"
    runs: RunsOfMany = Path("runs")
    upstream: Tree = PROJECT / "upstream"
    upstream_python: Python = PROJECT / ".venv-upstream/bin/python"

    def stage(self, name: str = "") -> "Asked":
        """What a person asks of a stage, of these options. Raises InputError where there is no such engine."""
        from leonardo.stages.asked import Asked, UpstreamPlace

        if self.engine not in ("desk", "upstream"):
            raise InputError(f"no engine {self.engine}", "Engines: desk, upstream")
        place = UpstreamPlace(self.upstream, self.upstream_python)
        return Asked(name, self.engine, self.seed, self.site, self.driver, place)


@stage_app.command("run")
@with_sets
def run_command(
    name: Annotated[str, typer.Argument(help="A stage of launch/stages: smoke, calibrate, pilot; or a .yaml file.")],
    ladder: LadderOptions,
    out: Out = Path("out"),
    policy: Policy = None,
    model: Annotated[str, typer.Option(help="A model of launch/models in place of the stage's; or a .yaml file.")] = "",
    missing: Annotated[bool, typer.Option("--missing", help="Run missing stages first, not the gates alone.")] = False,
    force: Force = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Do not go on with an interrupted run.")] = False,
) -> None:
    """Train, evaluate, and hold the records to the stage's criteria."""
    stay_local()
    from leonardo.report.page import render_report
    from leonardo.report.summary import print_summary
    from leonardo.stages.climb import run_with_what_is_missing
    from leonardo.stages.training import run_stage

    console = open_console()
    asked = replace(ladder.stage(name), policy=policy, model=model, force=force, fresh=fresh)
    if not force:
        outcomes = run_with_what_is_missing(asked, stages=missing, runs=ladder.runs, out=out, console=console)
    else:
        outcomes = iter([run_stage(asked, runs=ladder.runs, out_path=out / f"{Path(name).stem}.json", console=console)])
    ok = True
    for outcome in outcomes:
        ok = outcome.ok
        if outcome.comparison is not None:
            print_summary(outcome.comparison, console)
        title = f"{outcome.stage}, {ladder.engine} engine, seed {ladder.seed}"
        typer.echo(f"report: {render_report(outcome.run_folder, title)}")
        for stain in outcome.stains:
            typer.echo(f"STAINED: {stain}")
        typer.echo(f"{'ok' if ok else 'NOT OK'}: {outcome.sentence}")
    raise typer.Exit(0 if ok else 1)


@stage_app.command("plan")
@with_sets
def plan_command(ladder: LadderOptions) -> None:
    """The ladder: what has passed, what is open, and why the rest is shut."""
    stay_local()
    from leonardo.stages.climb import rungs

    table = Table("rung", "state", "why")
    colours = {"passed": "green", "failed": "red", "open": "bold", "shut": "dim"}
    for rung in rungs(ladder.stage(), ladder.runs):
        stained = " [red](stained)[/red]" if rung.entry and rung.entry.stains else ""
        number = f" (entry {rung.number})" if rung.number else ""
        table.add_row(rung.name, f"[{colours[rung.state]}]{rung.state}[/]{stained}", f"{rung.why}{number}")
    open_console().print(table)


@with_sets
def report_command(
    ladder: LadderOptions,
    run: Annotated[Path | None, typer.Argument(help="A run folder; by default the whole ladder.")] = None,
    other: Annotated[Path | None, typer.Argument(help="Another one, to compare it with.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the page: a run's own, else out, if not given.")] = None,
) -> None:
    """One page: what was proven, with which pins, what was not. The options choose the ladder that is shown."""
    from leonardo import evidence
    from leonardo.report.ladder import render_ladder
    from leonardo.report.page import render_report
    from leonardo.report.run import read_run
    from leonardo.report.runs import render_two
    from leonardo.stages.climb import rungs

    faults: list[evidence.Fault] = []
    if run is not None and other is not None:
        page = render_two(run, other, (out or OUT) / "runs.html")
    elif run is not None:
        page = render_report(run, read_run(run).facts.name or run.name, out)
    else:
        ledger = ladder.runs / evidence.LEDGER
        check = evidence.check(ledger)
        # where the ledger was edited, entries cannot be relied upon: the page then shows what is wrong, and no more
        asked = ladder.stage()
        found = rungs(asked, ladder.runs) if check.ok else []
        page = render_ladder(found, evidence.read(ledger) if check.ok else [], check, (out or OUT) / "ladder.html")
        faults = check.faults
    typer.echo(f"report: {page}")
    if faults:
        typer.echo(f"NOT OK: the ledger was edited: {faults[0]}")
        raise typer.Exit(1)
