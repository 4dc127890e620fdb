"""The command line: one line a command, the work is in the stages. Heavy imports happen inside the commands."""

import errno
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from leonardo.assets.commands import assets_app
from leonardo.errors import LeonardoError
from leonardo.evidence.commands import evidence_app
from leonardo.functions.commands import functions_app
from leonardo.offline import stay_local
from leonardo.options import DriverName, Jobs, Out, RowOptions, Rows, Runs, RunsOfOne, Seed, Shard, SiteName, with_sets
from leonardo.overlay.commands import patches_app
from leonardo.report.commands import report_command, stage_app
from leonardo.report.transfer_commands import add_commands
from leonardo.stages.evaluate import evaluate_app
from leonardo.stages.family_commands import families_app
from leonardo.stages.launch_array_commands import launch_app

PROJECT = Path(__file__).parent.parent

_HINTS = {
    errno.ENOSPC: "Free some space there, or name another folder (LEONARDO_CACHE, --out, --runs)",
    errno.EDQUOT: "Free some of your quota, or name another folder (LEONARDO_CACHE, --out, --runs)",
    errno.EMFILE: "Allow more open files: ulimit -n 4096",
}


class Stopped(KeyboardInterrupt):
    """A signal asked this process to end; it cleans up as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Commands(TyperGroup):
    """The commands. An expected failure of one is one line and an exit code, never a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the chosen command."""
        try:
            return super().invoke(ctx)
        except LeonardoError as error:
            _end(str(error), error.exit_code)
        except KeyboardInterrupt as error:
            number = error.number if isinstance(error, Stopped) else signal.SIGINT
            _end("interrupted; the same command goes on from here", 128 + number)
        except BrokenPipeError:
            raise  # nobody reads the output any more: typer ends quietly
        except OSError as error:
            hint = _HINTS.get(error.errno or 0, "Make it usable, or name another (LEONARDO_CACHE, --out, --runs)")
            where = f"{error.filename}: " if error.filename else ""
            _end(f"{where}{error.strerror or error}. {hint}", 3)


def _end(line: str, exit_code: int) -> NoReturn:
    print("leonardo:", " ".join(line.split()), file=sys.stderr)  # one line, whatever a library's words or a name hold
    raise SystemExit(exit_code)


app = typer.Typer(
    name="leonardo",
    cls=Commands,
    help="Agentic RL in terminal sandboxes on Apptainer and Slurm, proven step by step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(patches_app)
app.add_typer(assets_app)
app.add_typer(functions_app)
app.add_typer(families_app)
app.add_typer(evidence_app)
app.add_typer(launch_app)
app.add_typer(evaluate_app)
app.add_typer(stage_app)
add_commands(app)
app.command("report")(report_command)
compat = typer.Typer(name="compat", help="Compat rules: what is done differently where a set-up meets a site.")
app.add_typer(compat)


@app.command()
def demo(
    seed: Seed = 1,
    site: SiteName = "desk",
    driver: DriverName = "auto",
    out: Out = Path("out"),
    runs: RunsOfOne = Path("runs"),
) -> None:
    """The recipe end to end on this machine: desk tasks, warm start, RL, base versus trained, report."""
    stay_local()
    from rich.console import Console

    from leonardo.report.page import render_report
    from leonardo.report.summary import print_summary
    from leonardo.stages.demo import run_demo

    console = Console()
    outcome = run_demo(seed=seed, site=site, driver_name=driver, runs=runs, out_path=out / "demo.json", console=console)
    page = render_report(outcome.run_folder, f"Desk demo, seed {seed}")
    print_summary(outcome.comparison, console)
    typer.echo(f"report: {page}")
    typer.echo(f"{'ok' if outcome.ok else 'NOT OK'}: {outcome.sentence}")
    raise typer.Exit(0 if outcome.ok else 1)


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
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


@app.command()
def repairs(
    runs: Annotated[Path, typer.Option(help="Folder of the records.")] = Path("runs"),
    page: Annotated[Path, typer.Option(help="What to write.")] = Path("REPAIRS.md"),
) -> None:
    """The repair log, from the records of diagnoses."""
    from leonardo.stages.diagnose import FOLDER, RECORDS, write_repairs

    write_repairs(runs / FOLDER / RECORDS, page)
    typer.echo(f"written: {page}")


@compat.command("list")
def compat_list() -> None:
    """Every rule: what it is about, what it does, where it applies."""
    from leonardo.stages.compat import list_command

    raise typer.Exit(list_command())


@compat.command("explain")
def compat_explain(
    task: Annotated[str, typer.Argument(help="Id of a row.")],
    rows: Annotated[Path, typer.Option(help="The file or folder that has it.")],
    site: SiteName = "desk",
    driver: DriverName = "auto",
) -> None:
    """Which rules apply to a row here, and why."""
    from leonardo.stages.compat import explain_command

    raise typer.Exit(explain_command(task, rows, site=site, driver_name=driver))


@app.command()
def engines(
    first: Annotated[Path, typer.Argument(help="Run folder of a stage with one engine.")],
    second: Annotated[Path, typer.Argument(help="Run folder of the same stage with the other.")],
    out: Out = Path("out"),
) -> None:
    """Both engines on the same tasks, side by side: one page, and out/engines.json."""
    from leonardo.report.engines import render_engines
    from leonardo.stages.engines import compare_engines

    typer.echo(f"report: {render_engines(compare_engines(first, second, out / 'engines.json'), out / 'engines.html')}")


@app.command()
def doctor(
    out: Out = Path("out"),
    site: SiteName = "desk",
    node: Annotated[
        bool, typer.Option("--node", help="As a compute node: in a job of its own, outside of one.")
    ] = False,
    pool: Annotated[str, typer.Option(help="Which of the site's kinds of nodes; its first if not given.")] = "",
    account: Annotated[str, typer.Option(help="Whom that job's time is charged to.")] = "",
) -> None:
    """What this machine has, what each gap costs and what to do; and which sandbox drivers serve here."""
    from leonardo.stages.doctor import doctor_command

    raise typer.Exit(doctor_command(out / "doctor.json", site, node=node, pool=pool, account=account))


@app.command()
def failures() -> None:
    """The classes of failure, as the Markdown of docs/failures.md."""
    from leonardo.taxonomy import failures_page

    typer.echo(failures_page(), nl=False)


@app.command()
def janitor(driver: DriverName = "auto") -> None:
    """Clean what a crashed node or a killed run of yours left here. Every run does so, too, when it begins."""
    from leonardo.sandbox.drivers import clean_up

    done = clean_up(driver)
    typer.echo("\n".join(done) or "nothing was left")


def main() -> None:
    """Entry point."""
    try:
        Path.cwd()
    except OSError as error:
        _end(f"the current folder cannot be used ({error.strerror}). Go to another: cd", 2)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup's choice stands
            signal.signal(number, _stop)
    app()


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    for other in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)  # once is enough: what follows is the clean-up
    raise Stopped(number)


if __name__ == "__main__":
    main()
