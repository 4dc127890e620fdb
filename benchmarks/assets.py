"""What layers are worth: ``make bench-assets``.

In one run the rows' set-ups are built in layers, packages apart from tasks, and each once more as a whole, as an
image's own layer would be. The sum of all layers is held against the sum of the wholes, and so is every file: the
merged view of the layers must be that of the whole. Each task layer is built a second time and must be the same.

Prints a table, writes out/bench-assets.json, and exits with 1 where a target is missed.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rich.table
from rich.console import Console

from leonardo.assets.manifest import ManifestEntry
from leonardo.assets.plan import BuildSettings
from leonardo.assets.progress import BuildProgress, ConsoleProgress
from leonardo.assets.proof import differing
from leonardo.assets.store import AssetStore
from leonardo.errors import InfrastructureError, LeonardoError
from leonardo.files import write_verdict
from leonardo.sandbox.driver import Driver
from leonardo.sandbox.drivers import open_driver
from leonardo.site import load_site
from leonardo.tasks.rows import read_tasks
from leonardo.tasks.task import Task

AT_MOST = {"task_layer_median_kb": 200.0, "layers_over_separate": 0.25}
UNPACKED = 4 << 30  # a whole is half a gigabyte, and each is needed once


@dataclass
class Row:
    """What was measured for one row; bytes are compressed ones."""

    task: Task
    entry: ManifestEntry
    whole: ManifestEntry
    differing: list[str]
    same_digest: bool


def measure(
    tasks: Sequence[Task], store: AssetStore, wholes: AssetStore, driver: Driver, progress: BuildProgress, jobs: int
) -> tuple[list[Row], dict[str, float]]:
    """Build the rows both ways and compare. Raises InfrastructureError where one cannot be built."""
    seconds = {}
    began = time.monotonic()
    entries = _built(store, tasks, jobs, progress)
    seconds["layers"] = round(time.monotonic() - began, 1)
    began = time.monotonic()
    separate = _built(wholes, tasks, jobs, progress)
    seconds["separate"] = round(time.monotonic() - began, 1)
    rows = []
    progress.start(len(tasks), "compared")
    for task, entry, whole in zip(tasks, entries, separate, strict=True):
        with store.using(task) as layers, wholes.using(task) as one:
            other = sorted(differing(driver, layers.stack, one.stack))
        again = store.again(task)
        rows.append(Row(task, entry, whole, other, again.set_up.layers == entry.set_up.layers))
        progress.advance()
    return rows, seconds


def _built(store: AssetStore, tasks: Sequence[Task], jobs: int, progress: BuildProgress) -> list[ManifestEntry]:
    entries = store.build(tasks, jobs=jobs, progress=progress)
    if failed := [entry for entry in entries if entry.failure is not None]:
        raise InfrastructureError(
            f"{len(failed)} rows cannot be built: {failed[0].task_id}: {failed[0].set_up.reason}", "", failed[0].failure
        )
    return entries


def figures_of(rows: Sequence[Row], stored: dict[str, int]) -> dict[str, float | int | list[str]]:
    """Sizes, ratio and proofs."""
    own = [row.entry.set_up.compressed_bytes for row in rows]
    layers = {digest: stored[digest] for row in rows for digest in row.entry.set_up.layers}
    packages = {digest for row in rows for digest in row.entry.set_up.packages}
    separate = sum(row.whole.set_up.compressed_bytes for row in rows)
    return {
        "rows": len(rows),
        "task_layer_median_kb": round(statistics.median(own) / 1000, 2),
        "task_layer_largest_kb": round(max(own) / 1000, 2),
        "package_layers": len(packages),
        "layers_mb": round(sum(layers.values()) / 1e6, 2),
        "separate_mb": round(separate / 1e6, 2),
        "layers_over_separate": round(sum(layers.values()) / separate, 4),
        "same_tree": sum(not row.differing for row in rows),
        "same_digest": sum(row.same_digest for row in rows),
        "in_one_layer": sum(bool(row.entry.set_up.one_layer) for row in rows),
        "differing": [f"{row.task.id}: {path}" for row in rows for path in row.differing[:20]],
    }


def show(rows: Sequence[Row], stored: dict[str, int], console: Console) -> None:
    """Print what was measured, a row a line."""
    table = rich.table.Table("task")
    for name in ("own layer", "package layers", "whole", "same tree", "same again"):
        table.add_column(name, justify="right")
    for row in rows:
        record = row.entry.set_up
        table.add_row(
            row.task.id,
            f"{record.compressed_bytes / 1000:,.1f} kB",
            " + ".join(f"{stored[digest] / 1e6:,.1f}" for digest in record.packages) + " MB",
            f"{row.whole.set_up.compressed_bytes / 1e6:,.1f} MB",
            "[red]no[/red]" if row.differing else "yes",
            "yes" if row.same_digest else "[red]no[/red]",
        )
    console.print(table)


def main() -> int:
    """Measure, print, write. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("--root", type=Path, help="keep what is built here, and go on with what is there")
    parser.add_argument("--site", default="desk")
    parser.add_argument("--driver", default="auto")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    console = Console()
    site = load_site(options.site)
    tasks = read_tasks(options.rows)
    site.cache.mkdir(parents=True, exist_ok=True)
    folder = options.root or Path(tempfile.mkdtemp(dir=site.cache, prefix="bench-assets-"))
    try:
        _lend_bases(site.cache / "assets" / "bases", folder / "bases")
        with open_driver(options.driver) as driver:
            settings = {"most_unpacked": UNPACKED}
            store = AssetStore(folder, driver, site, **settings)
            wholes = AssetStore(folder, driver, site, settings=BuildSettings(split=False), **settings)
            with ConsoleProgress(console) as progress:
                rows, seconds = measure(tasks, store, wholes, driver, progress, options.jobs)
            stored = store.archives.stored()
            figures = figures_of(rows, stored) | {f"{name}_seconds": value for name, value in seconds.items()}
            store.close()
            wholes.close()
            if options.root is None:
                for digest in store.cache.layers():
                    store.cache.remove(digest)
    finally:
        if options.root is None:
            shutil.rmtree(folder, ignore_errors=True)
    show(rows, stored, console)
    missed = [f"{name} is {figures[name]}, at most {most}" for name, most in AT_MOST.items() if figures[name] > most]
    missed += [
        f"{name} is {figures[name]} of {len(rows)}"
        for name in ("same_tree", "same_digest")
        if figures[name] < len(rows)
    ]
    pins = {**rows[0].entry.pins, "bases": {row.entry.image: row.entry.base for row in rows}}
    write_verdict(options.out / "bench-assets.json", not missed, figures, pins)
    for line in figures["differing"]:
        console.print(f"differs: {line}", markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"{'NOT OK: ' + '; '.join(missed) if missed else 'ok'}: median of a task's own layer "
        f"{figures['task_layer_median_kb']} kB; all layers {figures['layers_mb']} MB, separately "
        f"{figures['separate_mb']} MB, ratio {figures['layers_over_separate']}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    return 1 if missed else 0


def _lend_bases(source: Path, target: Path) -> None:
    """Base images that the site has need not be made again."""
    if source.is_dir() and not target.exists():
        shutil.copytree(source, target, copy_function=_link_or_copy, ignore=shutil.ignore_patterns(".*"))


def _link_or_copy(source: str, target: str) -> None:
    try:
        Path(target).hardlink_to(source)
    except OSError:
        shutil.copy2(source, target)


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    except LeonardoError as error:
        raise SystemExit(f"bench-assets: {error}") from error
