"""``leonardo evaluate power``: how many tasks a difference takes."""

from pathlib import Path
from typing import Annotated

import typer

from leonardo.assets.progress import say
from leonardo.errors import InputError
from leonardo.options import Out
from leonardo.stages.policies_commands import Attempts
from leonardo.tables import Table, open_console


def power_command(
    difference: Annotated[float, typer.Option(help="The difference to be shown, such as 0.1 for 10 points.")],
    base: Annotated[float | None, typer.Option(min=0, max=1, help="The base's pass rate.")] = None,
    attempts: Attempts = 1,
    discordance: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of tasks at which single attempts of both differ.")
    ] = None,
    chance: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of the variance that is chance within a task.")
    ] = None,
    measured: Annotated[
        list[Path] | None, typer.Option(help="An earlier record, or two: base and trained; instead of --discordance.")
    ] = None,
    power: Annotated[float, typer.Option(help="Probability to show it.")] = 0.8,
    level: Annotated[float, typer.Option(help="Two-sided level: 1 - confidence.")] = 0.05,
    tasks: Annotated[int | None, typer.Option(min=2, help="Say what so many tasks show.")] = None,
    out: Out = Path("out"),
) -> None:
    """The tasks that show a given difference, and what other differences and numbers of attempts would take."""
    from leonardo.evaluation import power as planning
    from leonardo.evaluation.records import EvaluationRecord, read_record
    from leonardo.evaluation.verdict import points
    from leonardo.files import write_verdict

    records = [read_record(path, EvaluationRecord) for path in measured or ()]
    if len(records) > 2 or bool(records) == (base is not None):
        raise InputError("give either --base or one or two records (--measured)", "See leonardo evaluate power --help")
    spread = planning.measured(*records) if records else planning.assumed(base or 0.0, difference, discordance, chance)
    needed = planning.tasks_needed(spread, difference, attempts, power=power, level=level)
    columns = sorted({1, 2, 4, 8, attempts})
    steps = [difference * factor for factor in (0.5, 0.75, 1, 1.5, 2)]
    rows = planning.table(spread, steps, columns, power=power, level=level)
    console = open_console()
    shown = Table("difference, points", *(f"{number} attempt{'s' * (number > 1)}" for number in columns))
    for step, counts in rows:
        shown.add_row(points(step), *map(str, counts))
    console.print(shown)
    say(console, f"variance of one attempt {spread.within:.4f}, between tasks {spread.between:.4f}: {spread.source}")
    figures = {"tasks": needed, "difference": difference, "attempts": attempts, "power": power, "level": level}
    figures |= {"within": spread.within, "between": spread.between, "source": spread.source}
    if tasks is not None:
        figures["given_tasks"] = tasks
        figures["power_of_given_tasks"] = planning.power_of(spread, difference, attempts, tasks, level=level)
        say(console, f"{tasks} tasks show it with probability {figures['power_of_given_tasks']:.2f}")
    ok = tasks is None or tasks >= needed
    write_verdict(out / "evaluate-power.json", ok, figures, {})
    say(
        console,
        f"{needed} tasks, attempted {attempts} times by each policy, show a difference of {points(difference)} points "
        f"with probability {power:g} at level {level:g}",
    )
    raise typer.Exit(0 if ok else 1)
