"""The stage behind ``leonardo doctor``: what this machine has of what the project needs, and what each gap costs."""

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from shlex import quote

from rich.console import Console

from leonardo.cluster import Cluster, Pool, Roots
from leonardo.errors import InputError
from leonardo.files import require_writable, write_verdict
from leonardo.jobs import slurm
from leonardo.jobs.space import space_findings
from leonardo.probes import cluster, host
from leonardo.probes.probe import Result, healthy, ok
from leonardo.sandbox.drivers import REMEDY, Finding, survey
from leonardo.site import Site, load_site
from leonardo.tables import open_console

_WORDS = {
    "serves": "[green]yes[/green]      ",
    "ok": "[green]yes[/green]      ",
    "degraded": "[yellow]degraded[/yellow] ",
    "refused": "[red]no[/red]       ",
    "missing": "[red]no[/red]       ",
}

PROJECT = Path(__file__).parents[2]


def doctor_command(out_path: Path, site: str = "desk", *, node: bool = False, pool: str = "", account: str = "") -> int:
    """Try everything, print a line for each, write ``out_path``.

    Args:
        site: whose cluster is probed, too, where it has one.
        node: the probes of a compute node; outside of a job, in one.
        pool: of that node; the site's first if not given.
        account: for that job.

    Returns:
        0 where at least one driver serves and nothing is missing.
    """
    known = load_site(site)
    if node and "SLURM_JOB_ID" not in os.environ:
        return _on_a_node(known, site, out_path, pool, account)
    require_writable(out_path.parent)
    console = open_console()
    results = list(_results(known, node, pool))
    for result in results:
        _show(console, result)
    console.print("Drivers of sandboxes:", highlight=False)
    drivers = survey()
    for label, finding in drivers.items():
        console.print(_WORDS[_state(finding)], end="")
        note = f": {finding.note}" if finding.note else ""
        console.print(f"{label}{note}", markup=False, highlight=False, soft_wrap=True)
    serving = [label for label, finding in drivers.items() if finding.serves]
    if not serving:
        console.print(f"No sandboxes can be run here. {REMEDY}", highlight=False, soft_wrap=True)
    well = healthy(results, bool(serving))
    figures = {
        "drivers": {label: {"state": _state(finding), "note": finding.note} for label, finding in drivers.items()},
        "serving": serving,
        "findings": [asdict(result) for result in results],
    }
    write_verdict(out_path, well, figures, {"site": known.name, "user": os.getuid(), "node": os.uname().nodename})
    return 0 if well else 1


def _results(site: Site, node: bool, pool: str) -> Iterator[Result]:
    for probe in host.PROBES:
        yield probe()
    if site.cluster is None:
        return
    python = PROJECT / ".venv-upstream/bin/python"
    trainers = site.upstream.environment
    kind = _named_pool(site.cluster, pool)[1] if node else None
    for probe in cluster.cluster_probes(site.cluster, node=kind, python=python, environment=trainers):
        yield probe()
    yield from _space(site.cluster.roots)


def _space(roots: Roots) -> Iterator[Result]:
    cost = "a job may end half-way with a full disk"
    unset = [root for root in (roots.shared, roots.scratch) if "$" in str(root)]
    for root in unset:
        yield Result("space", "degraded", f"{root} is not set here", "nothing is known of it", "Set the variable")
    short = list(space_findings(roots))
    for finding in short:
        yield Result("space", "degraded", finding.what, cost, finding.remedy)
    if not short and not unset:
        yield ok("space", f"{roots.shared} has the room that the site asks for")


def _show(console: Console, result: Result) -> None:
    console.print(_WORDS[result.state], end="")
    console.print(f"{result.id}: {result.what}", markup=False, highlight=False, soft_wrap=True)
    if result.costs:
        words = f"{result.costs[0].upper()}{result.costs[1:]}. {result.remedy}".strip()
        console.print(f"         {words}", markup=False, highlight=False, soft_wrap=True)


def _named_pool(cluster: Cluster, name: str) -> tuple[str, Pool]:
    """A kind of node, by default the first, with its name."""
    chosen = name or next(iter(cluster.pools))
    return chosen, cluster.pool(chosen)


def _on_a_node(site: Site, name: str, out_path: Path, pool: str, account: str) -> int:
    """The same in a job of one whole node, whose output comes here."""
    known = site.cluster
    if known is None:
        raise InputError(f"site {site.name} has no cluster", "Leave --node out, or name another site")
    kind, asked = _named_pool(known, pool)
    charged = account or os.environ.get("LEONARDO_ACCOUNT", "") or known.account
    if known.account_needed and (not charged or charged.startswith("$")):
        raise InputError("no account is named", "Give LEONARDO_ACCOUNT=..., or --account")
    quality = known.quality(kind, 1, 10).name
    options = ["--job-name=doctor", f"--partition={asked.partition}", "--nodes=1", "--ntasks=1", "--time=10"]
    options += [f"--cpus-per-task={asked.cores}", f"--mem={round(asked.memory * 1024)}M"]
    options += [f"--account={charged}"] if charged and not charged.startswith("$") else []
    options += [f"--qos={quality}"] if quality else []
    options += [f"--gres={asked.gres.format(gpus=asked.gpus)}"] if asked.gpus else []
    lines = (
        f"{{ {line}\n}} || {{ echo {quote(f'set_up of the site failed at: {line}')} >&2; exit 3; }}"
        for line in known.set_up
    )
    shell = ["bash", "-c", "\n".join([*lines, 'exec "$@"']), "doctor"]
    command = [sys.executable, "-m", "leonardo.cli", "doctor", "--node", "--site", name, "--pool", kind]
    return slurm.run([*options, *known.sbatch], [*shell, *command, "--out", str(out_path.parent.absolute())])


def _state(finding: Finding) -> str:
    if not finding.serves:
        return "refused"
    return "degraded" if finding.note else "serves"
