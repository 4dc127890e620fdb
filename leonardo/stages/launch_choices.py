"""What a person chooses of a job, and the site's cluster."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from leonardo.cluster import Cluster
from leonardo.errors import InputError
from leonardo.site import Site
from leonardo.stages.launch_options import PROJECT, StageOptions

Engine = Literal["desk", "upstream"]


@dataclass(frozen=True)
class Choices(StageOptions):
    """What a person chooses, as a plan takes it.

    Attributes:
        engine: as in the files; "" leaves it to the stage.
        stage: the name or file that the job itself reads; the stage's own name if "".
        project, python: the checkout and its environment, as the nodes see them.
    """

    engine: Engine | Literal[""] = "desk"
    stage: str = ""
    project: Path = PROJECT
    python: Path = Path(sys.executable)


def cluster_of(site: Site) -> Cluster:
    """The site's cluster. Raises InputError where it has none."""
    if site.cluster is None:
        raise InputError(f"site {site.name} has no cluster", "Run the stage here: make smoke; or take --site leonardo")
    return site.cluster
