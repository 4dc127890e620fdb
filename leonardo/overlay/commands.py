"""``leonardo patches ...``: one line a command, for the Makefile and for people."""

from pathlib import Path
from typing import Annotated

import typer

from leonardo.options import Out

patches_app = typer.Typer(name="patches", help="The patch stack on upstream's tree.", no_args_is_help=True)

PROJECT = Path(__file__).parents[2]

Upstream = Annotated[Path | None, typer.Option(help="Upstream's checkout; the project's upstream/ if not given.")]
PatchName = Annotated[str, typer.Option(help="A patch: its name or number.")]
Project = Annotated[Path, typer.Option(help="The folder that patches/ and PATCHES.md are in.")]


@patches_app.command()
def apply(upstream: Upstream = None, project: Project = PROJECT) -> None:
    """Put the stack on the checkout: a branch, a commit a patch, and tags. Repeated, it changes nothing."""
    from leonardo.overlay import journal, operations, stack

    with journal.at_work(_checkout(upstream, project)) as tree:
        _tell(operations.apply(tree, project, stack.read_stack(project / "patches")))


@patches_app.command()
def unapply(upstream: Upstream = None, project: Project = PROJECT) -> None:
    """Leave the checkout as it was fetched. Refuses where edits would be lost."""
    from leonardo.overlay import journal, operations, stack

    with journal.at_work(_checkout(upstream, project)) as tree:
        _tell(operations.unapply(tree, project, stack.read_stack(project / "patches")))


@patches_app.command()
def diff(
    patch: PatchName = "",
    context: Annotated[
        int | None, typer.Option(min=0, help="Lines of context; the whole function if not given.")
    ] = None,
    upstream: Upstream = None,
    project: Project = PROJECT,
) -> None:
    """The inserted lines with upstream's around them: the stack with unsaved edits, or one patch."""
    import sys

    from leonardo.overlay import journal, operations, stack

    with journal.at_work(_checkout(upstream, project)) as tree:
        journal.refuse_unfinished(tree)
        color = sys.stdout.isatty()
        text = operations.diff(tree, stack.read_stack(project / "patches"), patch, context, color=color)
    sys.stdout.buffer.write(text.encode(errors="surrogateescape") + b"\n")


@patches_app.command()
def refresh(patch: PatchName = "", upstream: Upstream = None, project: Project = PROJECT) -> None:
    """Write edits of the checkout back to the last patch, or to the one named. Refuses what does not insert."""
    from leonardo.overlay import journal, operations, stack

    folder = project / "patches"
    checkout = _checkout(upstream, project)
    if not (checkout / ".git").exists():
        _tell(operations.refresh_page(project, folder))
        return
    with journal.at_work(checkout) as tree:
        _tell(operations.refresh(tree, project, stack.read_stack(folder), patch))


@patches_app.command(name="new")
def new(
    name: Annotated[str, typer.Argument(help="area-verb, in lower case.")],
    upstream: Upstream = None,
    project: Project = PROJECT,
) -> None:
    """Make the edits of the checkout a new patch at the end of the stack."""
    from leonardo.overlay import journal, operations, stack

    with journal.at_work(_checkout(upstream, project)) as tree:
        _tell(operations.new_patch(tree, project, stack.read_stack(project / "patches"), name))


@patches_app.command()
def rebase(
    onto: Annotated[str, typer.Argument(help="A commit or tag of upstream.")],
    upstream: Upstream = None,
    project: Project = PROJECT,
) -> None:
    """Carry the stack to another commit of upstream. Stops at a conflict and says how to go on or back."""
    from leonardo.overlay import journal, stack
    from leonardo.overlay import rebase as work

    with journal.at_work(_checkout(upstream, project)) as tree:
        _tell(work.rebase(tree, project, stack.read_stack(project / "patches"), onto))


@patches_app.command(name="continue")
def go_on(upstream: Upstream = None, project: Project = PROJECT) -> None:
    """Go on after a conflict or an interruption."""
    from leonardo.overlay import journal, stack
    from leonardo.overlay import rebase as work

    with journal.at_work(_checkout(upstream, project)) as tree:
        _tell(work.go_on(tree, project, stack.read_stack(project / "patches")))


@patches_app.command(name="abort")
def go_back(upstream: Upstream = None, project: Project = PROJECT) -> None:
    """Go back to where things were before the command that met a conflict or was interrupted."""
    from leonardo.overlay import journal
    from leonardo.overlay import rebase as work

    with journal.at_work(_checkout(upstream, project)) as tree:
        _tell(work.go_back(tree, project))


@patches_app.command()
def check(upstream: Upstream = None, project: Project = PROJECT, out: Out = Path("out")) -> None:
    """Hold the stack to its rules: offline, and with the tree where there is a checkout."""
    from leonardo.files import write_verdict
    from leonardo.overlay import journal, stack
    from leonardo.overlay.check import check as held

    checkout = _checkout(upstream, project)
    read = stack.read_stack(project / "patches")
    if (checkout / ".git").exists():
        with journal.at_work(checkout) as tree:
            journal.refuse_unfinished(tree)
            report = held(read, project, tree)
    else:
        report = held(read, project)
    for finding in report.findings:
        typer.echo(str(finding))
    pins = {"upstream": read.lock.commit}
    sound = not report.findings
    if sound:
        pins["stack"] = read.digest
    write_verdict(out / "check-patches.json", sound, report.figures, pins)
    figures = report.figures
    where = "applied and exported byte for byte" if report.with_tree else "offline: no checkout to apply them to"
    typer.echo(
        f"{'ok' if sound else 'NOT OK'}: {figures['patches']} patches, {figures['hooks']} hooks, "
        f"{figures['inserted_lines']} inserted lines, {figures['removed_lines']} removed, "
        f"{figures['context_lines']} of context; {len(report.findings)} findings ({where})"
    )
    raise typer.Exit(0 if sound else 1)


@patches_app.command()
def test(
    python: Annotated[Path, typer.Option(help="The interpreter of upstream's environment.")] = Path(
        ".venv-upstream/bin/python"
    ),
    upstream: Upstream = None,
    project: Project = PROJECT,
    out: Out = Path("out"),
) -> None:
    """Upstream's own tests with and without the stack: none that passes without may fail with it."""
    import tempfile
    from dataclasses import asdict

    from leonardo.files import write_verdict
    from leonardo.overlay import stack, suites
    from leonardo.overlay.tree import Tree

    checkout = _checkout(upstream, project)
    for there, what, target in (
        ((checkout / ".git").exists(), f"{checkout} holds no checkout of upstream", "upstream"),
        (python.exists(), f"{python} is not there", "upstream-env"),
    ):
        if not there:
            typer.echo(f"skipped: {what} (make {target})")
            return
    tree, read = Tree(checkout), stack.read_stack(project / "patches")
    reports = out.absolute() / "test-upstream"
    with tempfile.TemporaryDirectory(prefix="leonardo-suites-") as folder:
        places = suites.write_trees(tree, read, Path(folder))
        runs = []
        for name, place in zip(("without", "patched"), places, strict=True):
            runs.append(suites.run_suites(python.absolute(), place, reports / f"{name}.xml"))
            typer.echo(f"{name}: {sum(one == 'passed' for one in runs[-1].values())} of {len(runs[-1])} passed")
    result = suites.compare(*runs)
    pins = {"upstream": read.lock.commit, "stack": read.digest}
    write_verdict(out / "test-upstream.json", result.ok, asdict(result), pins)
    for name in result.broken:
        typer.echo(f"broken by the stack: {name}")
    if not result.before:
        typer.echo(f"no test passed on either tree: see the logs in {reports}")
    typer.echo(
        f"{'ok' if result.ok else 'NOT OK'}: {result.passed} passed, {result.failed} failed, {result.skipped} skipped "
        f"with the stack; {result.before} passed without; {len(result.broken)} broken, {len(result.repaired)} repaired"
    )
    raise typer.Exit(0 if result.ok else 1)


def _checkout(upstream: Path | None, project: Path) -> Path:
    return (upstream or project / "upstream").absolute()


def _tell(lines: list[str]) -> None:
    for line in lines:
        typer.echo(line)
