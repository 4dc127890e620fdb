"""``leonardo launch bundle`` and ``unbundle``: what is carried to a cluster without a network."""

import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from leonardo.errors import InputError
from leonardo.files import write_json
from leonardo.jobs import carry
from leonardo.jobs.offline import PIN
from leonardo.options import DriverName, SiteName, Tree

PROJECT = Path(__file__).parents[2]
PARTS = ("assets.tar", "upstream.tar", "project.bundle")

Target = Annotated[Path, typer.Argument(help="The bundle's folder; again, it goes on.")]


def bundle_command(
    target: Target,
    rows: Annotated[Path | None, typer.Option(help="Rows whose prepared states are built; a file.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Models of launch/models, fetched from the hub.")] = None,
    model_folder: Annotated[list[str] | None, typer.Option(help="name=folder: a checkpoint that is here.")] = None,
    wheels: Annotated[Path | None, typer.Option(help="Of make upstream-wheels.")] = None,
    upstream: Tree = PROJECT / "upstream",
    site: SiteName = "desk",
    driver: DriverName = "auto",
) -> None:
    """Collect wheels, upstream, models, rows and prepared states, with digests, into one folder."""
    for name, folder in (entry.split("=", 1) for entry in model_folder or ()):
        carry.add(target, Path(folder), f"models/{name}")
    for name in model or ():
        _fetch_model(name, target)
    if wheels is not None:
        carry.add(target, wheels, "wheels")
    if rows is not None:
        carry.add(target, rows, f"data/{rows.name}")
        _bundle_assets(rows, target / "assets.tar", site, driver)
    if any(upstream.glob("*")):
        _tar(upstream, target / "upstream.tar")
    if (PROJECT / ".git").exists():
        _git("bundle", "create", "--quiet", str((target / "project.bundle").absolute()), "HEAD")
    carry.seal(target, typer.echo)


def unbundle_command(
    source: Annotated[Path, typer.Argument(help="The bundle's folder.")],
    site: SiteName = "leonardo",
    driver: DriverName = "auto",
    upstream: Annotated[Path, typer.Option(help="Where upstream's checkout goes.")] = PROJECT / "upstream",
) -> None:
    """Verify every file of a bundle, then put each where the site looks for it."""
    from leonardo.site import load_site
    from leonardo.stages.launch_choices import cluster_of

    settings = load_site(site)
    shared = cluster_of(settings).roots.shared
    if "$" in str(shared):
        raise InputError(f"shared of the site is {shared}, which is not set here", "Set the variable")
    files = carry.verify(source)
    typer.echo(f"{source}: {len(files)} files are as they were made")
    carry.place(source, shared, files, typer.echo)
    if "upstream.tar" in files and not any(upstream.glob("training")):
        with tarfile.open(source / "upstream.tar") as archive:
            archive.extractall(upstream, filter="data")
        typer.echo(f"{upstream}: unpacked")
    if "assets.tar" in files:
        _unbundle_assets(source / "assets.tar", site, driver)
    if "wheels" in {name.split("/")[0] for name in files}:
        typer.echo(f"then: make upstream-env WHEELS={shared / 'wheels'} VARIANT=cuda")


def _fetch_model(name: str, target: Path) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    from leonardo.stages.definition import load_model

    known = load_model(name)
    folder = target / "models" / known.start.rpartition("/")[2]
    try:
        there = Path(snapshot_download(known.start, revision=known.revision or None))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise InputError(
            f"model {known.start} cannot be fetched ({' '.join(str(error).split())[:120]})",
            "Where there is a network, or give the folder: --model-folder",
        ) from error
    for path in sorted(there.rglob("*")):
        if path.is_file():
            carry.add(target, path.resolve(), f"models/{folder.name}/{path.relative_to(there)}")
    write_json(folder / PIN, {"name": known.start, "revision": there.name})


def _bundle_assets(rows: Path, target: Path, site: str, driver: str) -> None:
    from leonardo.assets.commands import bundle

    bundle(rows, target, site=site, driver=driver)


def _unbundle_assets(source: Path, site: str, driver: str) -> None:
    from leonardo.assets.commands import unbundle

    unbundle(source, site=site, driver=driver)


def _tar(folder: Path, target: Path) -> None:
    """A checkout without its history; the same bytes for the same files."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if ".git" in Path(info.name).parts or "__pycache__" in info.name:
            return None
        info.uid = info.gid = info.mtime = 0
        info.uname = info.gname = ""
        return info

    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    with tarfile.open(part, "w") as archive:
        archive.add(folder, ".", filter=plain)
    part.replace(target)


def _git(*words: str) -> None:
    command: Sequence[str] = ("git", "-C", str(PROJECT), *words)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise InputError(f"git {words[0]}: {done.stderr.strip()[:200]}", "Is this a clone?")
