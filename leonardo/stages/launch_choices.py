"""What a person chooses of a job, and the site's cluster."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from leonardo.cluster import Cluster
from leonardo.errors import InputError
from leonardo.site import Site

PROJECT = Path(__file__).parents[2]
Engine = Literal["desk", "upstream"]


@dataclass(frozen=True)
class Choices:
    """What a person chooses beside stage and site; "" and 0 leave it to the files.

    Attributes:
        engine, seed, account, quality, pool, minutes, shape: as in the files.
        site, stage: the names or files that the job itself reads; the stage's own name if "".
        model: in place of the stage's; force: the reason for running without the evidence below.
        sandbox_pool, sandbox_nodes: nodes for sandboxes alone, in place of the stage's.
        project, python: the checkout and its environment, as the nodes see them.
        upstream_python: of upstream's environment.
        tree: upstream's checkout.
    """

    engine: Engine | Literal[""] = "desk"
    seed: int = 1
    account: str = ""
    quality: str = ""
    pool: str = ""
    minutes: int = 0
    shape: str = ""
    site: str = "leonardo"
    stage: str = ""
    model: str = ""
    force: str = ""
    sandbox_pool: str = ""
    sandbox_nodes: int = 0
    project: Path = PROJECT
    python: Path = Path(sys.executable)
    upstream_python: Path = PROJECT / ".venv-upstream/bin/python"
    tree: Path = PROJECT / "upstream"

    def with_sandboxes(self, pool: str, nodes: int) -> Self:
        """The same with nodes for sandboxes alone."""
        return replace(self, sandbox_pool=pool, sandbox_nodes=nodes)


def cluster_of(site: Site) -> Cluster:
    """The site's cluster. Raises InputError where it has none."""
    if site.cluster is None:
        raise InputError(f"site {site.name} has no cluster", "Run the stage here: make smoke; or take --site leonardo")
    return site.cluster
