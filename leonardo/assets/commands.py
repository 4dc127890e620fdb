"""``leonardo assets ...``: build, carry and clean what tasks start from."""

import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from leonardo.assets.progress import say
from leonardo.errors import InfrastructureError, InputError
from leonardo.options import DriverName, Out, RowOptions, Rows, Shard, SiteName, with_sets
from leonardo.tables import Table, open_console

if TYPE_CHECKING:
    from leonardo.assets.archives import Archives
    from leonardo.assets.manifest import ManifestEntry

assets_app = typer.Typer(name="assets", help="Prepared states: build, prove, carry, clean.", no_args_is_help=True)

_MOST_ROWS = 60  # a longer table is for no one
_WORST = 20


@assets_app.command()
@with_sets
def build(
    rows: Rows,
    which: RowOptions,
    shard: Shard = "",
    jobs: Annotated[int, typer.Option(min=1, help="Set-ups at once; fewer where memory is short.")] = 2,
    downloads: Annotated[int, typer.Option(min=1, help="Package layers that are made at once.")] = 2,
    retries: Annotated[int, typer.Option(min=0, help="Attempts after one that the network failed.")] = 2,
    unpacked_gib: Annotated[float, typer.Option(min=1, help="What unpacked layers may take here.")] = 20.0,
    offline: Annotated[bool, typer.Option(help="Begin nothing that needs a network.")] = False,
    check: Annotated[int, typer.Option(min=0, help="Run so many of the rows twice, in layers and whole.")] = 0,
    site: SiteName = "desk",
    driver: DriverName = "auto",
    out: Out = Path("out"),
) -> None:
    """Build prepared states; what is there and whole is not built again."""
    from leonardo.assets import guard, selection
    from leonardo.assets.manifest import manifest_digest
    from leonardo.assets.plan import BuildSettings
    from leonardo.assets.progress import ConsoleProgress
    from leonardo.assets.store import MAIN
    from leonardo.files import require_writable, write_verdict

    require_writable(out)
    console = open_console()
    chosen_rows = selection.read_chosen(rows, which)
    tasks = selection.select(chosen_rows, shard=shard)
    if not chosen_rows:
        raise InputError(f"{rows}: the selection leaves no row", "Select others")
    if not tasks:  # of few rows in many parts: there is nothing to do, and that is no error
        write_verdict(out / "assets.json", True, {"rows": 0, "built": 0, "failures": {}}, {"shard": shard})
        say(console, f"ok: 0 rows, none of the {len(chosen_rows)} is in part {shard}")
        return
    builder = MAIN if not shard else "shard-{}-of-{}".format(*selection.parse_shard(shard))
    settings = BuildSettings(retries=retries, downloads=downloads, offline=offline)
    began = time.monotonic()
    with _opened(site, driver, settings=settings, most_unpacked=int(unpacked_gib * (1 << 30)), builder=builder) as (
        store,
        opened,
    ):
        missing, moved = store.outlook(tasks)
        found = guard.inspect(store.root, jobs, () if offline else missing, moved)
        if offline and missing:
            raise InputError(
                f"No base image for {', '.join(missing)} in {store.root}, and this build is offline",
                "Bring a bundle: leonardo assets unbundle",
            )
        for note in found.notes:
            say(console, note)
        if found.problems:
            raise InfrastructureError("; ".join(found.problems), "Then build again")
        with ConsoleProgress(console) as progress:
            entries = store.build(tasks, jobs=found.jobs, progress=progress)
            chosen = {task.id for task in selection.select(tasks, sample=check)} if check else set()
            entries = _checked(store, opened, [*zip(tasks, entries, strict=True)], chosen, progress)
        figures = _figures(entries, store.archives) | {"seconds": round(time.monotonic() - began, 1)}
    _show(console, entries)
    ok = all(entry.failure is None for entry in entries)
    pins = {"manifest": manifest_digest(entries), "bases": {entry.image: entry.base for entry in entries if entry.base}}
    write_verdict(out / "assets.json", ok, figures, {**pins, **entries[0].pins})
    say(console, _sentence(figures))
    raise typer.Exit(0 if ok else 1)


@assets_app.command()
def gc(
    delete: Annotated[bool, typer.Option(help="Remove it; else it is only counted.")] = False,
    keep: Annotated[Path | None, typer.Option(help="Rows that stay; all that were built if not given.")] = None,
    site: SiteName = "desk",
    driver: DriverName = "auto",
) -> None:
    """What no task refers to: counted, and removed with --delete. Nothing that is in use is."""
    from leonardo.assets.collect import collect, find_garbage
    from leonardo.tasks.rows import read_tasks

    console = open_console()
    kept = None if keep is None else {task.digest for task in read_tasks(keep)}
    with _opened(site, driver) as (store, _):
        garbage = collect(store, kept) if delete else find_garbage(store, kept)
    figures = garbage.figures
    what = ", ".join(f"{figures[name]} {name}" for name in ("layers", "bases", "records", "tasks", "unpacked"))
    what += f" layers, former {', '.join(garbage.former)}" if garbage.former else " layers"
    say(console, f"{'removed' if delete else 'garbage'}: {what}, {_megabytes(figures['bytes'])}")
    most = sorted(garbage.references.items(), key=lambda item: -item[1])[:_WORST]
    for digest, count in most:
        if count > 1:
            say(console, f"kept: {digest[:12]} for {count} tasks")
    if not delete and figures["bytes"] + figures["records"] + figures["tasks"] + figures["former"]:
        say(console, "nothing was removed: that is what --delete is for (make assets-gc DELETE=1)")


@assets_app.command()
@with_sets
def bundle(
    rows: Rows,
    target: Annotated[Path, typer.Argument(help="The archive; repeated, writing goes on where it was.")],
    which: RowOptions,
    site: SiteName = "desk",
    driver: DriverName = "auto",
) -> None:
    """Write what built rows need as one verified archive, for where there is no network."""
    from leonardo.assets.bundle import write_bundle
    from leonardo.assets.progress import ConsoleProgress
    from leonardo.assets.selection import read_chosen

    console = open_console()
    tasks = read_chosen(rows, which)
    with _opened(site, driver) as (store, _), ConsoleProgress(console) as progress:
        entries = [entry for task in tasks if (entry := store.entry(task)) is not None]
        members = write_bundle(store, entries, target, progress)
    if len(entries) < len(tasks):
        say(console, f"{len(tasks) - len(entries)} rows are not built and not in it")
    size = target.stat().st_size
    say(console, f"{target}: {len(entries)} rows, {len(members)} members, {_megabytes(size)}, verified")


@assets_app.command()
def unbundle(
    source: Annotated[Path, typer.Argument(help="The archive; repeated, unpacking goes on where it was.")],
    site: SiteName = "desk",
    driver: DriverName = "auto",
) -> None:
    """Put a bundle into this site's store; every member is verified first."""
    from leonardo.assets.bundle import read_bundle
    from leonardo.assets.progress import ConsoleProgress

    console = open_console()
    with _opened(site, driver) as (store, _), ConsoleProgress(console) as progress:
        brought = read_bundle(store, source, progress)
    say(console, f"{store.root}: {brought.tasks} rows, {brought.new} of {brought.members} members were new")


@contextmanager
def _opened(site: str, driver_name: str, **settings: Any) -> Iterator[tuple[Any, Any]]:
    """The site's store and a driver for it."""
    from leonardo.assets.store import AssetStore
    from leonardo.sandbox.drivers import open_driver
    from leonardo.site import load_site

    known = load_site(site)
    with open_driver(driver_name) as driver:
        store = AssetStore(known.cache / "assets", driver, known, **settings)
        try:
            yield store, driver
        finally:
            store.close()


def _checked(store: Any, driver: Any, built: Sequence[tuple], chosen: set[str], progress: Any) -> "list[ManifestEntry]":
    """The entries, those of the chosen rows after a proof."""
    from leonardo.assets.proof import prove

    entries = []
    progress.start(len(chosen), "run twice")
    for task, entry in built:
        if task.id in chosen and entry.failure is None and entry.set_up.layers:
            try:
                proof, entry = prove(store, driver, entry, task)
            except InfrastructureError as error:
                progress.note(f"{task.id}: could not be run again: {error}")
            else:
                if proof.random or proof.changed:
                    what = [f"random: {path}" for path in proof.random] + [f"changed: {path}" for path in proof.changed]
                    progress.note(f"{task.id}: {len(what)} files differ, such as {what[0]}")
            progress.advance()
        entries.append(entry)
    return entries


def _figures(entries: "Sequence[ManifestEntry]", archives: "Archives") -> dict[str, Any]:
    built = [entry.set_up for entry in entries if entry.failure is None]
    stored = archives.stored()
    own = [record.compressed_bytes for record in built if record.delta]
    packages = {digest for record in built for digest in record.packages}
    layers = {digest for record in built for digest in record.layers}
    return {
        "rows": len(entries),
        "built": len(built),
        "failures": dict(Counter(str(entry.failure) for entry in entries if entry.failure is not None)),
        "package_layers": len(packages),
        "package_bytes": sum(stored.get(digest, 0) for digest in packages),
        "layers": len(layers),
        "layer_bytes": sum(stored.get(digest, 0) for digest in layers),
        "task_layer_median_kb": round(statistics.median(own) / 1000, 2) if own else 0.0,
        "in_one_layer": sum(bool(record.one_layer) for record in built),
        "run_twice": sum(record.random is not None for record in built),
        "random": sum(bool(record.random) or record.keeps_times for record in built),
    }


def _show(console: Console, entries: "Sequence[ManifestEntry]") -> None:
    table = Table()
    table.add_column("task")
    for name in ("packages", "own layer", "seconds", "outcome"):
        table.add_column(name, justify="right" if name != "outcome" else "left")
    failed = [entry for entry in entries if entry.failure is not None]
    shown: Iterable[ManifestEntry] = entries if len(entries) <= _MOST_ROWS else failed[:_WORST]
    for entry in shown:
        record = entry.set_up
        table.add_row(
            entry.task_id,
            f"{len(record.packages)} layers" if record.packages else "-",
            f"{record.compressed_bytes / 1000:,.1f} kB" if record.delta else "-",
            f"{record.seconds:.1f}",
            _outcome(entry),
        )
    if table.row_count:
        console.print(table)
    if len(entries) > _MOST_ROWS:
        say(console, f"{len(entries)} rows: of them the first {min(_WORST, len(failed))} that failed are shown")


def _outcome(entry: "ManifestEntry") -> str:
    record = entry.set_up
    if entry.failure is not None:
        return f"[red]{entry.failure}[/red]"
    words = ["built"]
    if record.one_layer:
        words.append("in one layer")
    if record.random:
        words.append("random")
    if record.keeps_times:
        words.append("with times of its own")
    return ", ".join(words)


def _sentence(figures: dict[str, Any]) -> str:
    failures = ", ".join(f"{count} {name}" for name, count in sorted(figures["failures"].items()))
    return (
        f"{'ok' if not failures else 'NOT OK'}: {figures['built']} of {figures['rows']} rows built"
        f"{f' ({failures})' if failures else ''} in {figures['seconds']} s; {figures['package_layers']} package layers "
        f"{_megabytes(figures['package_bytes'])}, all {figures['layers']} layers {_megabytes(figures['layer_bytes'])}, "
        f"median of a task's own {figures['task_layer_median_kb']} kB"
    )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
