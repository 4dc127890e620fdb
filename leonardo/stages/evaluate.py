"""``leonardo evaluate ...``: measure, import, compare, plan."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from leonardo.assets.progress import say
from leonardo.errors import InputError
from leonardo.options import DriverName, Out, RowOptions, Shard, SiteName, with_sets
from leonardo.stages.evaluate_power import power_command
from leonardo.stages.policies_commands import (
    Attempts,
    EvaluationSeed,
    Turns,
    TurnTokens,
    join_command,
    policies_command,
)
from leonardo.tables import Table, open_console

if TYPE_CHECKING:
    from leonardo.evaluation.records import Comparison, EvaluationRecord

evaluate_app = typer.Typer(
    name="evaluate", help="Base versus trained: measure, import, compare, plan.", no_args_is_help=True
)

Resampling = Annotated[int, typer.Option(min=0, help="Of the resampling.")]
RecordFile = Annotated[Path, typer.Argument(help="An evaluation record: evaluation-<name>.json.")]

evaluate_app.command("policies")(policies_command)
evaluate_app.command("join")(join_command)
evaluate_app.command("power")(power_command)


@evaluate_app.command("compare")
def compare_command(
    base: RecordFile,
    trained: RecordFile,
    seed: Resampling = 0,
    published: Annotated[str, typer.Option(help="Show this column of the published table beside it.")] = "",
    out: Out = Path("out"),
) -> None:
    """Trained against base, paired by task; writes out/evaluate.json. Refuses where pins differ, with all reasons."""
    from leonardo.evaluation.comparability import reasons
    from leonardo.evaluation.compare import compare
    from leonardo.evaluation.judgement import criteria_json, figures_of, load_criteria
    from leonardo.evaluation.published import load_published
    from leonardo.evaluation.records import EvaluationRecord, read_record
    from leonardo.files import write_verdict
    from leonardo.gates.criteria import apply

    console = open_console()
    if published:
        load_published().benchmark(published)  # a column that is none is refused before anything is written
    records = [read_record(path, EvaluationRecord) for path in (base, trained)]
    if differ := reasons(*records):
        raise InputError(
            f"{base} and {trained} may not be compared: {'; '.join(differ)}", "Evaluate both under the same settings"
        )
    comparison = compare(*records, seed)
    figures = figures_of(comparison, *records)
    findings = apply(load_criteria(), figures)
    ok = all(finding.ok for finding in findings)
    write_verdict(
        out / "evaluate.json",
        ok,
        figures | {"families": [family.model_dump(mode="json") for family in comparison.families]},
        comparison.pins,
        says=_sentence(comparison, ok),
        criteria=criteria_json(findings),
    )
    _show_comparison(comparison, console)
    for finding in findings:
        say(console, f"{'met' if finding.ok else 'NOT met'}: {finding.sentence}")
    if excluded := figures["excluded_attempts"]:
        say(console, f"{excluded} attempts without a verdict are left out of all rates, not counted as failures")
    if published:
        _show_published(published, console, records[1])
    say(console, f"written: {out / 'evaluate.json'}")
    say(console, f"{'ok' if ok else 'NOT OK'}: {_sentence(comparison, ok)}")
    raise typer.Exit(0 if ok else 1)


@evaluate_app.command("run")
@with_sets
def run_command(
    tasks: Annotated[Path, typer.Option(help="Rows: a JSONL or Parquet file or a folder.")],
    endpoint: Annotated[str, typer.Option(help="An OpenAI-compatible server, such as http://127.0.0.1:8000/v1.")],
    model: Annotated[str, typer.Option(help="The name under which it serves the policy.")],
    which: RowOptions,
    name: Annotated[str, typer.Option(help="The model's name in the record; --model if not given.")] = "",
    record: Annotated[Path | None, typer.Option(help="The record to write; <out>/evaluation-<name>.json.")] = None,
    shard: Shard = "",
    attempts: Attempts = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="Attempts at a time.")] = 8,
    bounds: Annotated[str, typer.Option(help="Bounds of an episode: reference or desk.")] = "reference",
    turns: Turns = None,
    turn_tokens: TurnTokens = None,
    context_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of a conversation.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="Of sampling.")] = 1.0,
    top_p: Annotated[float, typer.Option(min=0, max=1, help="Share of the distribution that is sampled from.")] = 1.0,
    calls: Annotated[str, typer.Option(help="Who reads tool calls: native (the server), or text (we do).")] = "native",
    family: Annotated[str, typer.Option(help="Family of the model: how it writes calls that we read.")] = "qwen3.5",
    key_variable: Annotated[str, typer.Option(help="Variable that holds the server's key.")] = "OPENAI_API_KEY",
    call_timeout: Annotated[float, typer.Option(min=1, help="Seconds of one call.")] = 600.0,
    retries: Annotated[int, typer.Option(min=0, help="After a call that failed for a while only.")] = 6,
    seed: EvaluationSeed = 20_000,
    jobs: Annotated[int, typer.Option(min=1, help="Set-ups at once.")] = 2,
    site: SiteName = "desk",
    driver: DriverName = "auto",
    out: Out = Path("out"),
) -> None:
    """A policy behind chat completions, in our sandboxes and harness; writes a record. After a kill it goes on."""
    from leonardo.assets.selection import parse_shard, read_chosen
    from leonardo.evaluation.chat import Endpoint
    from leonardo.evaluation.parts import part_name
    from leonardo.evaluation.verdict import interval_points, percent
    from leonardo.rollout.families import load_family
    from leonardo.stages.endpoint import BOUNDS, EndpointRun, evaluate_endpoint

    if bounds not in BOUNDS or calls not in ("native", "text"):
        raise InputError(f"--bounds {bounds} --calls {calls}", f"Bounds: {', '.join(BOUNDS)}; calls: native, text")
    chosen = read_chosen(tasks, which)
    changed = {"steps": turns, "turn_tokens": turn_tokens, "context_tokens": context_tokens}
    part = parse_shard(shard) if shard else (1, 1)
    called = part_name((name or model).replace("/", "-"), *part)
    run = EndpointRun(
        endpoint=Endpoint(endpoint, model, os.environ.get(key_variable, ""), calls, call_timeout, retries),
        settings=replace(BOUNDS[bounds], **{key: value for key, value in changed.items() if value is not None}),
        tool_format=load_family(family).tool_format,
        record=record or out / f"evaluation-{called}.json",
        name=name or model,
        temperature=temperature,
        top_p=top_p,
        attempts=attempts,
        concurrency=concurrency,
        seed=seed,
        part=part,
    )
    console = open_console()
    made = evaluate_endpoint(run, chosen, site=site, driver_name=driver, jobs=jobs, console=console)
    classes = ", ".join(f"{count} {word}" for word, count in sorted(made.failures_by_class.items())) or "none"
    say(console, f"attempts without a verdict, which are in no rate: {made.infrastructure_failures} ({classes})")
    interval = interval_points(made.pass_rate_ci).replace("+", "")
    say(
        console,
        f"{made.model}: {percent(made.pass_rate)} of {len(made.tasks)} tasks, {interval}; written: {run.record}",
    )
    raise typer.Exit(0 if made.pass_rate is not None else 3)


@evaluate_app.command("seeds")
def seeds_command(
    records: Annotated[list[Path], typer.Argument(help="base trained base trained ...: a pair a training seed.")],
    seed: Resampling = 0,
    out: Out = Path("out"),
) -> None:
    """Several training seeds together: an interval over tasks and one over seeds; writes out/evaluate-seeds.json."""
    from leonardo.evaluation.judgement import compare_seeds
    from leonardo.evaluation.records import EvaluationRecord, read_record
    from leonardo.evaluation.verdict import interval_points, points
    from leonardo.files import write_verdict

    if len(records) % 2:
        raise InputError(f"{len(records)} records are no pairs", "Name base and trained of each seed")
    read = [read_record(path, EvaluationRecord) for path in records]
    found = compare_seeds([*zip(read[::2], read[1::2], strict=True)], seed)
    intervals = [ends for ends in (found.over_tasks, found.over_seeds) if ends is not None]
    ok = bool(intervals) and all(ends.low > 0 for ends in intervals)
    write_verdict(out / "evaluate-seeds.json", ok, found._asdict(), {"bases": [record.model for record in read[::2]]})
    console = open_console()
    say(console, f"differences, a seed each: {', '.join(map(points, found.differences))} points")
    say(console, f"for other tasks: {interval_points(found.over_tasks)}")
    say(
        console,
        f"for other seeds: {interval_points(found.over_seeds) if found.over_seeds else 'one seed says nothing'}",
    )
    say(console, f"{'ok' if ok else 'NOT OK'}: {points(found.value)} points over {len(found.differences)} seeds")
    raise typer.Exit(0 if ok else 1)


@evaluate_app.command("import-harbor")
def import_harbor_command(
    folder: Annotated[Path, typer.Argument(help="A job folder of Harbor: jobs/<name>.")],
    record: Annotated[Path | None, typer.Option(help="The record to write; <out>/evaluation-<model>.json.")] = None,
    model: Annotated[str, typer.Option(help="The record's name for the model; Harbor's if not given.")] = "",
    reward: Annotated[str, typer.Option(help="Which reward counts, where the verifier gives several.")] = "reward",
    pass_at: Annotated[float, typer.Option(help="The least reward that is a pass.")] = 1.0,
    agents: Annotated[
        list[str] | None, typer.Option(help="Exceptions that are the agent's own doing. AgentTimeoutError.")
    ] = None,
    out: Out = Path("out"),
) -> None:
    """Results of Harbor (Terminal-Bench) as a record. Trials without a verdict are excluded, and counted."""
    from leonardo.evaluation.harbor import AGENT_EXCEPTIONS, import_job
    from leonardo.evaluation.verdict import interval_points, percent

    own = frozenset(agents) if agents else AGENT_EXCEPTIONS
    job = import_job(folder, model=model, reward=reward, pass_at=pass_at, agent_exceptions=own)
    target = record or out / f"evaluation-{job.record.model.replace('/', '-')}.json"
    job.record.write(target)
    console = open_console()
    classes = ", ".join(f"{count} {name}" for name, count in sorted(job.record.failures_by_class.items())) or "none"
    say(console, f"{job.trials} trials of {len(job.record.tasks)} tasks; exceptions, and no reward: {classes}")
    say(console, f"{job.record.infrastructure_failures} trials have no verdict and are excluded")
    if job.record.infrastructure_failures:
        say(console, f"counted as 0, as Harbor does, the rate would be {percent(job.as_harbor_counts)}")
    rate = interval_points(job.record.pass_rate_ci).replace("+", "")
    say(console, f"{job.record.model}: {percent(job.record.pass_rate)}, {rate}; written: {target}")


@evaluate_app.command("published")
def published_command(
    benchmark: Annotated[str, typer.Argument(help="A column; all if not given.")] = "",
    record: Annotated[Path | None, typer.Option(help="Put this record beside it, with what differs.")] = None,
) -> None:
    """The published table, 2B to 27B; with a record, the reasons why figures may not be compared."""
    from leonardo.evaluation.records import EvaluationRecord, read_record

    ours = read_record(record, EvaluationRecord) if record else None
    if ours is not None and not benchmark:
        raise InputError("a record stands beside one column", "Name it, such as terminal-bench-2.0")
    _show_published(benchmark, open_console(), ours)


def _show_comparison(comparison: "Comparison", console: Console) -> None:
    from leonardo.evaluation.verdict import percent, points

    models = (escape(comparison.base_model), escape(comparison.trained_model))
    table = Table("tasks", "pairs", *models, "difference", "95 % interval", "p")
    families = [(family.family, family) for family in comparison.families]
    for name, part in [("all", comparison), *(families if len(families) > 1 else ())]:
        difference = part.difference
        table.add_row(
            escape(name),
            str(difference.pairs),
            percent(part.base.value),
            percent(part.trained.value),
            points(difference.value),
            "-" if difference.interval is None else " to ".join(map(points, difference.interval)),
            "-" if difference.p_value is None else f"{difference.p_value:.3g}",
        )
    console.print(table)


def _show_published(benchmark: str, console: Console, record: "EvaluationRecord | None" = None) -> None:
    from leonardo.evaluation.comparability import reasons
    from leonardo.evaluation.published import load_published
    from leonardo.evaluation.verdict import percent

    table = load_published()
    names = [table.benchmark(benchmark).name] if benchmark else [known.name for known in table.benchmarks]
    sizes = list(dict.fromkeys(result.size for result in table.results))
    shown = Table("size", *(f"{name}, {side}" for name in names for side in ("base", "trained")))
    for size in sizes:
        cells = {
            (result.benchmark, result.trained): f"{result.percent:g}" + (f" ± {result.error:g}" if result.error else "")
            for result in table.results
            if result.size == size
        }
        shown.add_row(size, *(cells.get((name, side), "-") for name in names for side in (False, True)))
    console.print(shown)
    for name in names:
        say(console, f"{name}: {table.benchmark(name).note}")
    for source in table.sources:
        say(console, f"source: {source}")
    if record is not None:
        differ = reasons(record, table.benchmark(benchmark))
        say(console, f"{record.model}: {percent(record.pass_rate)}")
        for reason in differ:
            say(console, f"differs: {reason}")
        say(console, "these figures may not be compared" if differ else "nothing that was recorded differs")


def _sentence(comparison: "Comparison", ok: bool) -> str:
    from leonardo.evaluation.verdict import interval_points, percent, points

    difference = comparison.difference
    worse = difference.interval is not None and difference.interval[1] < 0
    shown = "better" if ok else "worse" if worse else "not shown to be better"
    return (
        f"{comparison.trained_model} ({percent(comparison.trained.value)}) is {shown} than {comparison.base_model} "
        f"({percent(comparison.base.value)}): {points(difference.value)} points over {difference.pairs} tasks, "
        f"{interval_points(difference.interval)}"
    )
