"""The command line: one line a command, the work is in the stages. Heavy imports happen inside the commands."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from leonardo.errors import LeonardoError

app = typer.Typer(
    name="leonardo",
    help="Agentic RL in terminal sandboxes on Apptainer and Slurm, proven step by step.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Site = Annotated[str, typer.Option(help="Site file: a name in launch/sites or a path.")]
DriverName = Annotated[str, typer.Option(help="Sandbox driver: auto, namespaces or apptainer.")]
Jobs = Annotated[int, typer.Option(min=1, help="Set-ups and checks that run at once.")]
Out = Annotated[Path, typer.Option(help="Folder for the machine-readable verdict.")]


@app.command()
def demo(
    seed: Annotated[int, typer.Option(min=0, help="Governs tasks, model, sampling and statistics.")] = 1,
    site: Site = "desk",
    driver: DriverName = "auto",
    out: Out = Path("out"),
    runs: Annotated[Path, typer.Option(help="Folder for the run's records and report.")] = Path("runs"),
) -> None:
    """The recipe end to end on this machine: desk tasks, warm start, RL, base versus trained, report."""
    from leonardo.stages.demo import demo_command

    raise typer.Exit(demo_command(seed=seed, site=site, driver_name=driver, out=out, runs=runs))


@app.command()
def gates(
    tasks: Annotated[Path, typer.Argument(help="Rows: a JSONL or Parquet file or a folder.")],
    site: Site = "desk",
    driver: DriverName = "auto",
    jobs: Jobs = 2,
    out: Out = Path("out"),
) -> None:
    """Environment gates: build, null run, reference solution, reset bit for bit, nothing left over."""
    from leonardo.stages.environment import gates_command

    raise typer.Exit(gates_command(tasks, out / "gates.json", driver_name=driver, jobs=jobs, site=site))


@app.command()
def doctor() -> None:
    """What this machine allows: one line a sandbox driver, and what to do where one is refused."""
    from leonardo.stages.doctor import doctor_command

    raise typer.Exit(doctor_command())


def main() -> None:
    """Entry point. An expected failure is one line and an exit code, never a traceback."""
    try:
        app()
    except LeonardoError as error:
        print(f"leonardo: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        print("leonardo: interrupted; the same command goes on from here", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
