"""The report: one self-contained HTML page from a run folder, its plots as PNG files beside it."""

from pathlib import Path
from typing import Any

import numpy
from markupsafe import Markup

from leonardo.errors import FailureClass
from leonardo.evaluation.records import EvaluationRecord, RateRecord
from leonardo.evaluation.verdict import verdict
from leonardo.files import flat, write_atomic
from leonardo.report.claims import driver_in_words, not_proven, proven
from leonardo.report.figure import Plot
from leonardo.report.jinja import render
from leonardo.report.plots import family_plot, sandbox_plot, step_plots
from leonardo.report.run import Run, read_run, series
from leonardo.report.values import FILTERS

PAGE, PLOTS = "index.html", "plots"
FAILURE_WORDS = {entry.value: entry.meaning for entry in FailureClass} | {"no-rollout": "the rollout did not come back"}


def render_report(run_folder: Path, title: str, out: Path | None = None) -> Path:
    """Write ``index.html`` and ``plots/*.png`` from what the run has recorded so far.

    Missing parts are named on the page. See :mod:`leonardo.report.run` for the files.

    Args:
        out: folder of the page; the run's own if not given.

    Raises:
        InputError: if the folder does not exist or holds no record, or a file in it is not what its name says.
    """
    run = read_run(run_folder)
    out = out or run_folder
    plots = [*step_plots(run.steps), family_plot(run.comparison), sandbox_plot(run.steps)]
    for plot in plots:
        if plot.png:
            write_atomic(out / PLOTS / f"{plot.name}.png", plot.png)
        else:
            (out / PLOTS / f"{plot.name}.png").unlink(missing_ok=True)
    page = out / PAGE
    write_atomic(page, render_page(run, title, plots))
    return page


def render_page(run: Run, title: str, plots: list[Plot]) -> str:
    """The page as HTML text."""
    filters = FILTERS | {
        "interval": _interval,
        "svg": Markup,  # drawn by matplotlib from numbers and escaped names
    }
    by_name = {plot.name: plot for plot in plots}
    return render(
        "report.html.j2",
        filters,
        title=title,
        run=run,
        facts=run.facts,
        comparison=run.comparison,
        verdict=verdict(run.comparison, run.steps),
        proven=proven(run),
        not_proven=not_proven(run),
        rates=_rates(run),
        pins=flat(run.facts.pins) | flat(run.comparison.pins if run.comparison else {}, "evaluation."),
        curves=[plot for plot in plots if plot.name not in ("families", "sandbox")],
        families=by_name["families"],
        sandbox=by_name["sandbox"],
        driver=driver_in_words(run),
        times=_times(run),
        failures=_failures(run),
        configuration=flat(run.facts.configuration),
        assets=flat(run.facts.assets),
        machine=flat(run.facts.machine),
        table=_step_table(run),
    )


def _rates(run: Run) -> list[dict[str, Any]]:
    """Base and trained for the first screen: from the comparison, else from the record that there is."""
    rates = []
    for name, side, record in (
        ("Base", run.comparison and run.comparison.base, run.base),
        ("Trained", run.comparison and run.comparison.trained, run.trained),
    ):
        rate: RateRecord | None = side
        model = (run.comparison and getattr(run.comparison, f"{name.lower()}_model")) or (record and record.model) or ""
        value, ends = (rate.value, rate.interval) if rate else (None, None)
        if not rate and record:
            value, ends = record.pass_rate, record.pass_rate_ci
        tasks = rate.tasks if rate else len(record.tasks) if record else 0
        rates.append({"name": name, "value": value, "interval": ends, "tasks": tasks, "model": model})
    return rates


def _times(run: Run) -> list[dict[str, Any]]:
    """Sandbox times over the run; a step records its own p50 and p95, in milliseconds."""
    rows = []
    for name in ("reset", "command", "destroy"):
        medians, tails = (series(run.steps, f"sandbox.{name}_ms", position)[1] for position in (0, 1))
        if medians:
            rows.append(
                {
                    "name": name,
                    "p50": float(numpy.median(medians)),
                    "p95": float(numpy.median(tails)) if tails else None,
                    "worst": max(tails) if tails else None,
                }
            )
    return rows


def _failures(run: Run) -> list[dict[str, Any]]:
    """Failures by class in training and in both evaluations, most frequent first."""
    training: dict[str, int] = {}
    for step in run.steps:
        for name, count in (step.get("failures_by_class") or {}).items():
            training[name] = training.get(name, 0) + int(count)
    columns = [training, _by_class(run.base), _by_class(run.trained)]
    names = {name for column in columns for name, count in column.items() if count}
    rows = [
        {"name": name, "words": FAILURE_WORDS.get(name, ""), "counts": [column.get(name, 0) for column in columns]}
        for name in names
    ]
    return sorted(rows, key=lambda row: (-sum(row["counts"]), row["name"]))


def _by_class(record: EvaluationRecord | None) -> dict[str, int]:
    return record.failures_by_class if record else {}


def _step_table(run: Run) -> dict[str, Any]:
    fields = {
        "reward_mean": "reward",
        "zero_variance_share": "filtered",
        "groups_kept": "groups kept",
        "infrastructure_failures": "failures",
        "mask_fraction": "masked",
        "ratio_max": "ratio max",
        "loss": "loss",
        "gradient_norm": "gradient",
        "update_norm": "update",
        "times.step": "seconds",
    }
    columns = {name: dict(zip(*series(run.steps, name), strict=True)) for name in fields}
    numbers = series(run.steps, "step")[0]
    shown = {name: words for name, words in fields.items() if columns[name]}
    return {
        "head": ["step", *shown.values()],
        "rows": [[number, *(columns[name].get(number) for name in shown)] for number in numbers],
    }


def _interval(ends: tuple[float, float] | None) -> str:
    return "no interval" if ends is None else f"{100 * ends[0]:.1f} to {100 * ends[1]:.1f} %"
