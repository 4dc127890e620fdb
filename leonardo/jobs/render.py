"""A job as an sbatch script: ``launch/templates/job.sh.j2``, filled in. The same plan gives the same bytes."""

import json
import re
import shlex
from collections.abc import Iterator

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from leonardo.errors import InputError
from leonardo.hooks.placement import SANDBOX_RESOURCE, SANDBOXES_A_NODE
from leonardo.jobs.plan import JobPlan, Resources
from leonardo.settings import LAUNCH

_TEMPLATE = "job.sh.j2"

_OFFLINE = {
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "LC_ALL": "C.UTF-8",
    "PYTHONNOUSERSITE": "1",
    "PYTHONUNBUFFERED": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "WANDB_MODE": "offline",
}

SHARD = "{shard}"
"""In a command of an array: which part of how many."""


_NO_OPTION = re.compile(r"""[\s"'`\\#$]|[^\w!-~]""")
"""What an ``#SBATCH`` line would end at, split at, or have read as something else. (``$`` is none either, but for what
stands for a variable that is not set here.)"""

_VARIABLE = re.compile(r"\$\{?\w+\}?")
"""One that is not set here and stands in the script by its name; ``launch check`` finds it."""


def render(plan: JobPlan) -> str:
    """The script. Lines that a person should read are one option each.

    Raises:
        InputError: a name or folder cannot stand in an ``#SBATCH`` line; says which.
    """
    asked = plan.resources
    environment = Environment(
        loader=FileSystemLoader(LAUNCH / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = lambda value: shlex.quote(str(value))
    text: str = environment.get_template(_TEMPLATE).render(
        plan=plan,
        options=[_whole(option) for option in _options(plan)],
        variables=sorted({**_OFFLINE, **plan.environment}.items()),
        nodes=asked.nodes,
        cores=asked.cores,
        gpus=asked.gpus,
        by_task=asked.gpus > 0,
        sandboxes=plan.sandboxes,
        unpacking=plan.sandboxes or asked,
        all_nodes=asked.nodes + (plan.sandboxes.nodes if plan.sandboxes else 0),
        sandbox_resources=shlex.quote(json.dumps({SANDBOX_RESOURCE: SANDBOXES_A_NODE})),
        ray_options=" ".join(
            [
                f"--num-cpus={plan.ray_places or max(1, asked.cores - asked.reserved_cores)}",
                f"--num-gpus={asked.gpus}",
                *map(shlex.quote, plan.ray_options),
            ]
        ),
        command=list(_lines(plan)),
    )
    return text


def _whole(option: str) -> str:
    """``option`` as it is. Raises InputError where sbatch or the shell would read something else."""
    odd = _NO_OPTION.search(_VARIABLE.sub("", option))
    folder = option.removeprefix("--output=").rpartition("/")[0] if option.startswith("--output=") else ""
    if odd or "%" in folder:  # in a log's name sbatch puts something else for a %
        sign = repr(odd.group() if odd else "%")
        raise InputError(f"{option!r} cannot stand in a job's script: it has a {sign}", "Take a plainer name")
    return option


def _options(plan: JobPlan) -> Iterator[str]:
    yield from _nodes(plan, plan.resources)
    if plan.array:
        yield f"--array=0-{plan.array - 1}"
    yield f"--output={plan.folder}/slurm-{'%A_%a' if plan.array else '%j'}.log"
    yield "--open-mode=append"
    yield "--requeue"
    yield f"--signal=B:USR1@{plan.grace}"
    yield "--kill-on-invalid-dep=yes"
    yield from plan.resources.options
    if plan.sandboxes is not None:
        yield "hetjob"
        yield from _nodes(plan, plan.sandboxes)
        yield "--requeue"
        yield from plan.sandboxes.options


def _nodes(plan: JobPlan, asked: Resources) -> Iterator[str]:
    yield f"--job-name={plan.name}"
    if asked.account:
        yield f"--account={asked.account}"
    yield f"--partition={asked.partition}"
    if asked.quality:
        yield f"--qos={asked.quality}"
    yield f"--time={asked.minutes // 60:02d}:{asked.minutes % 60:02d}:00"
    yield f"--nodes={asked.nodes}"
    yield "--ntasks-per-node=1"
    yield f"--cpus-per-task={asked.cores}"
    yield f"--mem={round(asked.memory * 1024)}M"
    if asked.gres:
        yield f"--gres={','.join(asked.gres)}"
    if asked.exclusive:
        yield "--exclusive"


def _lines(plan: JobPlan) -> Iterator[str]:
    """The command, two options with their values a line, by name: whoever looks for an option finds it."""
    lines: list[list[str]] = [[]]
    for word in plan.command:
        if word.startswith("--") and lines[-1]:
            lines.append([])
        lines[-1].append('"$shard"' if plan.array and word == SHARD else shlex.quote(word))
    program, *options = lines
    yield " ".join(program)
    ordered = [" ".join(option) for option in sorted(options, key=lambda option: option[0])]
    yield from (" ".join(ordered[at : at + 2]) for at in range(0, len(ordered), 2))
