"""The part of a site file that describes a cluster: its scheduler, kinds of nodes, folders and limits. Data, no logic.

Sizes are in GiB, times in minutes unless a name says otherwise. Variables such as ``$WORK`` in paths are the user's own
and are filled in on the machine that renders the script.
"""

import os
import re
import string
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from leonardo.errors import InputError
from leonardo.settings import Settings

ACCOUNT_VARIABLE = "LEONARDO_ACCOUNT"

_MOST_MEMORY = 32 * 1024
"""GiB of a node: more than there is, and what MiB of a node of 32 GiB would be."""

_MOST_MINUTES = 30 * 24 * 60
"""Of a job: more than clusters allow, and less than the seconds of a day."""


def _with_variables(value: object) -> object:
    """``$WORK/x`` as it is in this shell; a variable that is not set stays, for ``check`` to name."""
    return string.Template(value).safe_substitute(os.environ) if isinstance(value, str) else value


def _whole(path: Path) -> Path:
    if not path.is_absolute() and not str(path).startswith("$"):
        raise ValueError(f"{path} is relative; give the whole path")
    return path


def _in_gib(value: float) -> float:
    if value > _MOST_MEMORY:
        raise ValueError(f"{value:g} GiB is more than a node has; the unit is GiB (Slurm prints MiB: divide by 1024)")
    return value


def _in_minutes(value: int) -> int:
    if value > _MOST_MINUTES:
        raise ValueError(f"{value} is more than {_MOST_MINUTES}, 30 days; the unit is minutes")
    return value


def _shell_names(variables: dict[str, str]) -> dict[str, str]:
    for name in variables:
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ValueError(f"{name!r} is no name of a variable: letters, digits and _")
    return variables


SitePath = Annotated[Path, BeforeValidator(_with_variables), AfterValidator(_whole)]
Memory = Annotated[float, AfterValidator(_in_gib)]
Variables = Annotated[dict[str, str], AfterValidator(_shell_names)]


class Pool(Settings):
    """A kind of node.

    Attributes:
        partition: of the scheduler.
        cores, memory: of a node; ``memory`` is what a job may ask for.
        gpus, gpu, gpu_memory: how many, what models call it in their ``shapes``, and its memory.
        gres: how GPUs are asked for; ``{gpus}`` is the number.
        reserved_cores: of a node, for learner and engines; sandboxes stay off them.
        tmp: node-local folder.
        tmp_size: what a job may use of it without asking.
        tmp_gres, most_tmp: how more is asked for (``{gib}`` is the number), and how much there may be.
        tmp_in_memory: what lies in ``tmp`` counts as memory.
    """

    partition: str = Field(min_length=1)
    cores: int = Field(gt=0)
    memory: Memory = Field(gt=0)
    gpus: int = Field(default=0, ge=0)
    gpu: str = ""
    gpu_memory: Memory = Field(default=0.0, ge=0)
    gres: str = "gpu:{gpus}"
    reserved_cores: int = Field(default=0, ge=0)
    tmp: SitePath = Path("/tmp")
    tmp_size: float = Field(gt=0)
    tmp_gres: str = ""
    most_tmp: float = Field(default=0.0, ge=0)
    tmp_in_memory: bool = False

    @field_validator("gres", "tmp_gres")
    @classmethod
    def _takes_its_number(cls, value: str, info: ValidationInfo) -> str:
        name = "gpus" if info.field_name == "gres" else "gib"
        try:
            value.format(**{name: 1})
        except (LookupError, ValueError, TypeError, AttributeError) as error:
            raise ValueError(f"{value!r} cannot be filled in; the place of the number is {{{name}}}") from error
        return value

    @field_validator("reserved_cores")
    @classmethod
    def _leaves_cores(cls, value: int, info: ValidationInfo) -> int:
        if "cores" in info.data and value >= info.data["cores"]:
            raise ValueError(f"{value} of {info.data['cores']} cores leave none for sandboxes")
        return value


class Quality(Settings):
    """A quality of service (QOS): which jobs it takes. ``name`` "" is the scheduler's default."""

    name: str = ""
    most_minutes: Annotated[int, AfterValidator(_in_minutes)] = Field(gt=0)
    most_nodes: int = Field(gt=0)
    least_nodes: int = Field(default=1, gt=0)
    pools: tuple[str, ...] = ()
    """Which pools it serves; all if none is named."""


class Roots(Settings):
    """Folders. ``shared`` is seen by all nodes and kept; ``scratch`` too, but may be cleaned by the site."""

    shared: SitePath
    scratch: SitePath
    least_free: float = Field(default=20.0, ge=0)
    """What has to be free, by the quota and by the file system, before a job is submitted."""
    least_files: int = Field(default=50_000, ge=0)
    """How many more files the quota has to allow."""


class Network(Settings):
    """Whether the internet is reached."""

    login: bool = True
    compute: bool = False


class ApptainerLimits(Settings):
    """What is known of Apptainer here."""

    command: str = "apptainer"
    least: str = "1.1"
    """The oldest version that serves."""
    setuid: bool = False
    """Installed with a set-uid helper; else user namespaces are needed."""


class Cluster(Settings):
    """A cluster.

    Attributes:
        scheduler: Slurm is the one that is known.
        account: whom the time is charged to; ``LEONARDO_ACCOUNT`` or ``--account`` override it.
        account_needed: whether the scheduler wants one.
        pools: kinds of nodes by the name that stages use.
        qualities: tried in this order: a job gets the first that takes it.
        roots: folders.
        set_up: lines of shell at the start of every job: modules.
        environment: variables of every job.
        sbatch: further options of every job.
        network, apptainer: what is there.
        grace: seconds before the limit at which a job is told to save and is queued again.
    """

    scheduler: Literal["slurm"] = "slurm"
    account: Annotated[str, BeforeValidator(_with_variables)] = ""
    account_needed: bool = True
    pools: dict[str, Pool] = Field(min_length=1)
    qualities: tuple[Quality, ...] = Field(min_length=1)
    roots: Roots
    set_up: tuple[str, ...] = ()
    environment: Variables = {}
    sbatch: tuple[str, ...] = ()
    network: Network = Network()
    apptainer: ApptainerLimits = ApptainerLimits()
    grace: int = Field(default=300, gt=0)

    @field_validator("qualities")
    @classmethod
    def _of_pools_there_are(cls, qualities: tuple[Quality, ...], info: ValidationInfo) -> tuple[Quality, ...]:
        pools = info.data.get("pools", {})
        for quality in qualities if pools else ():
            if unknown := sorted(set(quality.pools) - set(pools)):
                raise ValueError(f"{quality.name or 'default'}: no pool {unknown[0]}; there are {', '.join(pools)}")
        return qualities

    def pool(self, name: str) -> Pool:
        """A kind of node. Raises InputError that names those there are."""
        if name not in self.pools:
            raise InputError(f"the site has no pool {name}", f"Pools: {', '.join(self.pools)}")
        return self.pools[name]

    def quality(self, pool: str, nodes: int, minutes: int, named: str = "") -> Quality:
        """The first QOS that takes such a job, or the ``named`` one. A site that names none leaves that to a person.

        Raises InputError that says what each allows.
        """
        names = {quality.name for quality in self.qualities}
        if named and not any(names):
            return Quality(name=named, most_minutes=minutes, most_nodes=nodes)
        serving = [quality for quality in self.qualities if not quality.pools or pool in quality.pools]
        for quality in serving:
            fits = quality.least_nodes <= nodes <= quality.most_nodes and minutes <= quality.most_minutes
            if fits and named in ("", quality.name):
                return quality
        most = "; ".join(
            f"{quality.name or 'default'}: {quality.least_nodes} to {quality.most_nodes} nodes, "
            f"{quality.most_minutes} minutes"
            for quality in serving
        )
        if named and named not in names:
            what = f"the site has no QOS {named} for {pool} nodes"
        else:
            refuses = f"QOS {named} does not take" if named else "no QOS takes"
            what = f"{refuses} {nodes} {pool} nodes for {minutes} minutes"
        raise InputError(what, f"There are: {most}" if most else "Name one")
