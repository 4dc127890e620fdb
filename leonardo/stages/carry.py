"""``leonardo launch bundle`` and ``unbundle``: what is carried to a cluster without a network."""

import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated

import typer

from leonardo.errors import InputError
from leonardo.files import require_writable, write_json
from leonardo.holding import alone_in
from leonardo.jobs import carry
from leonardo.jobs.checkout import pack, unpack
from leonardo.jobs.offline import PIN, missing_wheels
from leonardo.options import DriverName, SiteName, Tree

if TYPE_CHECKING:
    from leonardo.stages.definition import Model

PROJECT = Path(__file__).parents[2]
ENVIRONMENTS = PROJECT / "launch" / "environments"

Target = Annotated[Path, typer.Argument(help="The bundle's folder; again, it goes on.")]


def bundle_command(
    target: Target,
    rows: Annotated[Path | None, typer.Option(help="Rows whose prepared states are built; a file.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Models of launch/models, fetched from the hub.")] = None,
    model_folder: Annotated[
        list[str] | None,
        typer.Option(help="name=folder: a checkpoint; as a model of launch/models, or any."),
    ] = None,
    wheels: Annotated[Path | None, typer.Option(help="Of make upstream-wheels.")] = None,
    upstream: Tree = PROJECT / "upstream",
    site: SiteName = "desk",
    driver: DriverName = "auto",
) -> None:
    """Collect wheels, upstream, models, rows and prepared states, with digests, into one folder."""
    from leonardo.stages.definition import load_model

    require_writable(target)
    known = [load_model(name) for name in model or ()]
    given = [*map(_named, model_folder or ())]
    targets = Counter([*(name for name, _ in given), *(each.folder for each in known)])
    if twice := [name for name, times in targets.items() if times > 1]:
        raise InputError(f"models/{twice[0]} of the bundle would be two models", "Name one of them")
    folders = {f"models/{name}": folder for name, folder in given}
    if wheels is not None:
        folders["wheels"] = wheels
    for folder in folders.values():
        if not folder.is_dir():
            raise InputError(f"{folder} is no folder", "Name the one that is to be carried")
    carry.begin(target)
    with alone_in(target):
        if rows is not None:  # first: they may turn out not to be rows, or not to be built
            _bundle_assets(rows, target / "assets.tar", site, driver)
            carry.add(target, rows, f"data/{rows.name}")
        for name, folder in folders.items():
            carry.add(target, folder, name)
        for entry in known:
            _fetch_model(entry, target)
        if wheels is not None:
            _tell_missing(wheels)
        if (upstream / "training").is_dir():
            _require_patched(upstream)
            pack(upstream, target / "upstream.tar")
        else:
            typer.echo(f"{upstream} holds no upstream: it is not in the bundle (make apply-patches)")
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

    shared = load_site(site).shared
    if "$" in str(shared):
        raise InputError(f"shared of the site is {shared}, which is not set here", "Set the variable")
    require_writable(shared)
    with alone_in(shared):
        files = carry.verify(source)
        typer.echo(f"{source}: {len(files)} files are as they were made")
        carry.place(source, shared, files, typer.echo)
        if "upstream.tar" in files:
            _unpack_upstream(source / "upstream.tar", upstream)
        if "assets.tar" in files:
            _unbundle_assets(source / "assets.tar", site, driver)
    if "wheels" in {name.split("/")[0] for name in files}:
        typer.echo(f"then: make upstream-env WHEELS={shared / 'wheels'} VARIANT=cuda")


def _named(entry: str) -> tuple[str, Path]:
    """``name=folder``, the name as the site that gets it looks for it. Raises InputError."""
    from leonardo.settings import LAUNCH
    from leonardo.stages.definition import load_model

    name, _, folder = entry.partition("=")
    if not folder or not re.fullmatch(r"\w[\w.-]*", name):
        raise InputError(f"--model-folder {entry!r} is not name=folder", "The name is a model's folder there")
    is_known = (LAUNCH / "models" / f"{name}.yaml").is_file()
    return load_model(name).folder if is_known else name, Path(folder)


def _tell_missing(wheels: Path) -> None:
    """Say which package lacks a wheel, by the lock that is nearest to what is there."""
    locks = [ENVIRONMENTS / f"upstream-{variant}.txt" for variant in ("cuda", "cpu")]
    missing = {lock: missing_wheels(lock, wheels) for lock in locks}
    lock = min(locks, key=lambda each: len(missing[each]))
    if missing[lock]:
        typer.echo(f"{wheels} lacks {len(missing[lock])} packages of {lock.name}, such as {missing[lock][0]}")


def _require_patched(upstream: Path) -> None:
    """The patch stack is on it, since on a cluster nobody can put it there."""
    from leonardo.overlay.stack import read_stack, unpatched

    stack = read_stack(PROJECT / "patches")
    if wrong := unpatched(stack, upstream):
        raise InputError(
            f"{upstream / wrong[0]} is not as the patch stack leaves it", "Put it there: make apply-patches"
        )


def _unpack_upstream(archive: Path, upstream: Path) -> None:
    if (upstream / "training").is_dir():
        typer.echo(f"{upstream}: there already, and left as it is")
        return
    if upstream.is_dir() and any(upstream.iterdir()):
        raise InputError(f"{upstream} holds something else", "Move it away, or name another folder: --upstream")
    unpack(archive, upstream)
    typer.echo(f"{upstream}: unpacked")


def _fetch_model(known: "Model", target: Path) -> None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    name = f"models/{known.folder}"
    try:
        there = Path(snapshot_download(known.start, revision=known.revision or None))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise InputError(
            f"model {known.start} cannot be fetched ({shorten(str(error), 160, placeholder=' …')})",
            "Where there is a network, or give the folder: --model-folder",
        ) from error
    carry.add(target, there, name)
    write_json(target / name / PIN, {"name": known.start, "revision": there.name})


def _bundle_assets(rows: Path, target: Path, site: str, driver: str) -> None:
    from leonardo.assets.commands import bundle

    bundle(rows, target, site=site, driver=driver)


def _unbundle_assets(source: Path, site: str, driver: str) -> None:
    from leonardo.assets.commands import unbundle

    unbundle(source, site=site, driver=driver)


def _git(*words: str) -> None:
    command: Sequence[str] = ("git", "-C", str(PROJECT), *words)
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise InputError(f"git does not run ({error.strerror})", "Install git, or load its module") from error
    if done.returncode != 0:
        raise InputError(f"git {words[0]}: {shorten(done.stderr, 200, placeholder=' …')}", "Is this a clone?")
