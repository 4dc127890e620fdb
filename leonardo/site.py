"""A site: where the recipe runs, and how that place gets what it needs. Data in ``launch/sites/*.yaml``, no logic."""

import os
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from leonardo.cluster import Cluster, Variables
from leonardo.settings import Settings, find_settings, read_settings, require_named

CACHE_VARIABLE = "LEONARDO_CACHE"
NODE_CACHE_VARIABLE = "LEONARDO_NODE_CACHE"


class Constraints(Settings):
    """Version bounds that hold during set-ups only, where a substitute is newer than the image that it stands for."""

    pip: tuple[str, ...] = ()


class _Substitute(Settings):
    reason: str = Field(min_length=1)
    """Why it may stand in; shown wherever results are."""
    environment: Variables = {}
    """Variables that every command in the prepared states sees."""
    set_up_constraints: Constraints = Constraints()


class BootstrapSubstitute(_Substitute):
    """A root file system made from the host's own package archive, by mmdebstrap."""

    kind: Literal["mmdebstrap"]
    suite: str
    """A release that the host's apt knows; else the host's own release is taken, and recorded."""
    variant: str = "minbase"
    include: tuple[str, ...] = ()


class ArchiveSubstitute(_Substitute):
    """A root file system in a tar archive."""

    kind: Literal["archive"]
    path: Path
    """Relative to the site file, or absolute."""


class BaseSource(Settings):
    """How a base image is got: from its registry where that is allowed and can be reached, else the substitute."""

    registry: bool = True
    substitute: Annotated[BootstrapSubstitute | ArchiveSubstitute, Field(discriminator="kind")] | None = None


class UpstreamRuntime(Settings):
    """How upstream's trainer runs at a site.

    Attributes:
        flags: of the trainer that the site's hardware decides.
        environment: variables of the trainer and of Ray.
        ray: options of ``ray start``, name -> value.
    """

    flags: dict[str, Any] = {}
    environment: Variables = {}
    ray: dict[str, str | int | float] = {}


class Cost(Settings):
    """What an hour of a run costs at a site: ``count`` of ``unit``; by default all cores that the process may use."""

    unit: str = "core hours"
    count: float | None = Field(default=None, gt=0)

    def units(self) -> float:
        """In an hour."""
        return self.count if self.count is not None else float(len(os.sched_getaffinity(0)))


class Site(Settings):
    """A site file.

    Attributes:
        name: shown with results.
        cache: folder for everything that can be made again; ``LEONARDO_CACHE`` overrides it. With variables.
        node_cache: folder on a disk of the node itself for unpacked layers; ``LEONARDO_NODE_CACHE`` overrides it. In
            the cache if neither is given, which is right where the cache is on such a disk.
        bases: image name -> how to get it; an image without an entry comes from its registry.
        upstream: how upstream's trainer runs here.
        cluster: its scheduler, nodes and folders; None for a machine of one's own.
        cost: what an hour of a run costs here.
    """

    examples: ClassVar[str] = "launch/templates/site.yaml, which has every key, and launch/sites"

    name: str
    cache: Path = Path("~/.cache/tmax-leonardo")
    node_cache: Annotated[Path | None, Field(validate_default=True)] = None
    bases: dict[str, BaseSource] = {}
    upstream: UpstreamRuntime = UpstreamRuntime()
    cluster: Cluster | None = None
    cost: Cost = Cost()

    @field_validator("cache")
    @classmethod
    def _cache_folder(cls, value: Path) -> Path:
        return _own_folder(os.environ.get(CACHE_VARIABLE) or value)

    @field_validator("node_cache")
    @classmethod
    def _node_folder(cls, value: Path | None) -> Path | None:
        chosen = os.environ.get(NODE_CACHE_VARIABLE) or value
        return _own_folder(chosen) if chosen else None

    @field_validator("bases")
    @classmethod
    def _normal_names(cls, value: dict[str, BaseSource]) -> dict[str, BaseSource]:
        return {normal_image(name): source for name, source in value.items()}

    @property
    def shared(self) -> Path:
        """Folder that all nodes see; on a machine of one's own the cache."""
        return self.cluster.roots.shared if self.cluster else self.cache

    @property
    def models(self) -> Path:
        """Folder of the pretrained models, each by the last part of its name."""
        return self.shared / "models"

    @property
    def variables(self) -> dict[str, str]:
        """What tells another process where the caches are."""
        folders = {CACHE_VARIABLE: self.cache, NODE_CACHE_VARIABLE: self.node_cache}
        return {name: str(folder) for name, folder in folders.items() if folder}

    def base(self, image: str) -> BaseSource:
        """How to get ``image``."""
        return self.bases.get(normal_image(image), BaseSource())


def _own_folder(value: str | Path) -> Path:
    path = Path(os.path.expandvars(value)).expanduser()
    return path if str(path).startswith("$") else path.absolute()  # not set here: elsewhere it may be


def normal_image(name: str) -> str:
    """One name an image: ``docker://HOST/library/ubuntu:22.04`` is ``ubuntu:22.04``, and no tag is ``latest``."""
    short = re.sub(r"^([^/]+\.[^/]+/)?library/", "", name.strip().removeprefix("docker://"))
    return short if ":" in short.rpartition("/")[2] or "@" in short else f"{short}:latest"


def load_site(name: str | Path) -> Site:
    """Read a site: a name in ``launch/sites``, or the path of a YAML file.

    Raises:
        InputError: no such site, or a setting that is unknown or wrong; names the file and the setting.
    """
    path = find_settings(name, "sites")
    site = read_settings(path, Site, {"cache": Site.model_fields["cache"].default})
    require_named(path, "sites", site.name)
    return site.model_copy(update={"bases": {name: _absolute(base, path) for name, base in site.bases.items()}})


def _absolute(source: BaseSource, site_file: Path) -> BaseSource:
    if not isinstance(source.substitute, ArchiveSubstitute):
        return source
    path = (site_file.parent / source.substitute.path.expanduser()).absolute()
    return source.model_copy(update={"substitute": source.substitute.model_copy(update={"path": path})})
