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
from leonardo.options import DriverName, Out, RunsOfOne, Seed, SiteName
from leonardo.overlay.commands import patches_app
from leonardo.report.commands import report_command, stage_app
from leonardo.report.transfer_commands import add_commands
from leonardo.stages.evaluate import evaluate_app
from leonardo.stages.family_commands import families_app
from leonardo.stages.gate_commands import add_gates
from leonardo.stages.launch_array_commands import launch_app

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
add_gates(app)
add_commands(app)
app.command("report")(report_command)


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
    from leonardo.report.page import render_report
    from leonardo.report.summary import print_summary
    from leonardo.stages.demo import run_demo
    from leonardo.tables import open_console

    console = open_console()
    outcome = run_demo(seed=seed, site=site, driver_name=driver, runs=runs, out_path=out / "demo.json", console=console)
    page = render_report(outcome.run_folder, f"Desk demo, seed {seed}")
    print_summary(outcome.comparison, console)
    typer.echo(f"report: {page}")
    typer.echo(f"{'ok' if outcome.ok else 'NOT OK'}: {outcome.sentence}")
    raise typer.Exit(0 if outcome.ok else 1)


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
