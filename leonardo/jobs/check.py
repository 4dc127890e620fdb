"""Everything about a job that can be known before the queue. Each finding is one line; none means: submit it."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leonardo.cluster import Cluster, Pool
from leonardo.engine.upstream.flags import TRAINER, command_line, known_flags
from leonardo.errors import InfrastructureError, InputError
from leonardo.files import require_writable, write_atomic
from leonardo.hooks.paths import LONGEST_SCRATCH
from leonardo.jobs import slurm
from leonardo.jobs.arithmetic import memory_findings, node_findings, shape_findings
from leonardo.jobs.findings import Finding
from leonardo.jobs.folder import PLAN, holder, read_plan
from leonardo.jobs.offline import environment_findings, model_findings, needs_findings
from leonardo.jobs.plan import JobPlan
from leonardo.jobs.settings import Shape
from leonardo.jobs.space import space_findings
from leonardo.overlay.stack import read_stack, unpatched
from leonardo.site import CACHE_VARIABLE, NODE_CACHE_VARIABLE

_ID_DIGITS = 8
"""Of a job's id, at most, in the name of its scratch folder."""


@dataclass(frozen=True)
class Trainer:
    """What is beside the plan where the job runs upstream's trainer.

    Attributes:
        python, tree, patches, lock, wheels: its environment, its checkout, the stack, the packages.
        commit: what the checkout has to be of.
        shape: over GPUs.
        flags: that decide sizes.
        parameters: of the model, billions.
        model: its folder; None where it is made on the way.
        name, start, revision: of its file; on the hub.
    """

    python: Path
    tree: Path
    patches: Path
    lock: Path
    shape: Shape
    wheels: Path | None = None
    flags: Mapping[str, Any] = field(default_factory=dict)
    parameters: float = 0.0
    model: Path | None = None
    name: str = ""
    start: str = ""
    revision: str = ""
    commit: str = ""


def check(plan: JobPlan, cluster: Cluster, pool: Pool, script: str, trainer: Trainer | None = None) -> list[Finding]:
    """All findings, what is cheapest to mend first."""
    found = [*_paths(plan, cluster, pool), *node_findings(plan.resources, pool)]
    apart = None
    if plan.sandboxes is not None:
        kind = next(kind for kind in cluster.pools.values() if kind.partition == plan.sandboxes.partition)
        apart = plan.sandboxes, kind
        found += node_findings(*apart)
    if trainer is not None:
        found += shape_findings(trainer.shape, pool, trainer.flags)
        found += memory_findings(trainer.shape, pool, trainer.parameters, trainer.flags, plan.resources, apart)
        found += _pins(trainer)
        found += _flags(trainer)
        found += environment_findings(trainer.python, trainer.lock, trainer.wheels)
        if trainer.model is not None:
            found += model_findings(trainer.model, trainer.name, trainer.start, trainer.revision)
    named = {finding.what.split(" ")[0] for finding in found if finding.id == "offline.model"}
    needs = {path: hint for path, hint in plan.needs.items() if not path.startswith("$")}  # of a folder that is told
    found += [finding for finding in needs_findings(needs) if not _told(finding, trainer, named, found)]
    found += _folder(plan.folder)
    found += space_findings(cluster.roots)
    return found + list(_scheduler(plan, cluster, script, bool(found)))


def _told(finding: Finding, trainer: Trainer | None, named: set[str], found: list[Finding]) -> bool:
    """Whether another finding says the same, more exactly."""
    if trainer is None:
        return False
    path = finding.what.split(" ")[0]
    if trainer.model is not None and path.startswith(f"{trainer.model}/"):
        return any(other.id == "offline.model" for other in found)
    return path == str(trainer.python) and any(other.id == "offline.wheels" for other in found)


def _paths(plan: JobPlan, cluster: Cluster, pool: Pool) -> Iterator[Finding]:
    folders = {"shared": cluster.roots.shared, "scratch": cluster.roots.scratch, "tmp": pool.tmp}
    caches = {"cache": CACHE_VARIABLE, "node_cache": NODE_CACHE_VARIABLE}
    folders |= {name: Path(plan.environment.get(variable, "")) for name, variable in caches.items()}
    for name, path in folders.items():
        if "$" in str(path):
            yield Finding("paths.variable", f"{name} of the site is {path}, which is not set here", "Set the variable")
    scratch = len(os.fsencode(plan.scratch / f"l{'9' * _ID_DIGITS}"))
    if scratch > LONGEST_SCRATCH:
        yield Finding(
            "paths.socket",
            f"a job's scratch folder below {plan.scratch} has {scratch} bytes, and sockets allow {LONGEST_SCRATCH}",
            "Name a shorter tmp in the site",
        )
    for folder in dict.fromkeys((cluster.roots.shared, cluster.roots.scratch, plan.folder)):
        if "$" in str(folder):
            continue
        try:
            require_writable(folder)
        except InputError as error:
            yield Finding("paths.writable", error.what, error.hint)


def _pins(trainer: Trainer) -> Iterator[Finding]:
    try:
        stack = read_stack(trainer.patches)
    except InputError as error:
        yield Finding("pins.patches", error.what, error.hint)
        return
    if trainer.commit and stack.lock.commit != trainer.commit:
        yield Finding(
            "pins.upstream",
            f"the stage is pinned to upstream {trainer.commit[:12]}, the patch stack is for {stack.lock.commit[:12]}",
            "Rebase the stack (make rebase-patches), or change the pin",
        )
    if not trainer.tree.is_dir():
        return  # a need that is not there is told as such
    if wrong := unpatched(stack, trainer.tree):
        yield Finding(
            "pins.patches",
            f"{trainer.tree / wrong[0]} is not as the patch stack leaves it at {stack.lock.commit[:12]}",
            "Put the stack there: make apply-patches",
        )


def _flags(trainer: Trainer) -> Iterator[Finding]:
    """Flags that the trainer would end over as soon as it starts."""
    if not (trainer.tree / TRAINER).is_file():
        return  # a need that is not there is told as such
    try:
        command_line(trainer.flags, known_flags(trainer.tree))
    except InputError as error:
        yield Finding("flags.unknown", error.what, error.hint)


def _folder(folder: Path) -> Iterator[Finding]:
    held = holder(folder)
    if held is None:
        if (folder / PLAN).exists() and (plan := read_plan(folder)).get("job") and not plan.get("collected"):
            yield Finding("run.folder", f"{folder} holds another run", "Name another folder")
        return
    job = str(held.get("job", ""))
    states = slurm.states(job) if job and slurm.available() else []
    if states and not all(state.ended for state in states):
        yield Finding(
            "run.folder",
            f"{folder} is the folder of job {job}, which is {states[0].name.lower()}",
            "Name another folder, or end that job: leonardo launch cancel",
        )
    else:
        yield Finding(
            "run.lock",
            f"{folder} has a stale lock of {f'job {job}, which has ended' if job else 'a job that was never queued'} "
            f"({held.get('time', '?')})",
            "Let it go: leonardo launch collect, or remove lock.json",
        )


def _scheduler(plan: JobPlan, cluster: Cluster, script: str, wrong: bool) -> Iterator[Finding]:
    account = plan.resources.account
    if cluster.account_needed and not account:
        yield Finding("slurm.account", "no account is named", "Give LEONARDO_ACCOUNT=..., or --account")
    if not slurm.available():
        yield Finding("slurm.absent", "sbatch is not here", "Check again on a login node")
        return
    known = slurm.accounts()
    if account and known is not None and account.lower() not in known:
        yield Finding(
            "slurm.account",
            f"account {account} is none of yours ({', '.join(sorted(known))})",
            "Give another with LEONARDO_ACCOUNT=..., or --account",
        )
        return
    if cluster.account_needed and not account:
        return
    place = plan.folder if plan.folder.is_dir() else None
    refusal = _refusal(script, place)
    if not refusal:
        return
    try:
        slurm.configuration()
    except InfrastructureError:
        yield Finding("slurm.away", f"Slurm cannot be asked ({refusal})", "Check again where its controller answers")
    else:
        yield Finding("slurm.refused", f"the scheduler would not take it: {refusal}", "Change the site or the stage")


def _refusal(script: str, place: Path | None) -> str:
    import tempfile

    with tempfile.TemporaryDirectory(dir=place) as folder:
        path = Path(folder) / "job.sh"
        write_atomic(path, script)
        return slurm.test_only(path)
