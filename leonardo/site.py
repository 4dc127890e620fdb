"""A site: where the recipe runs, and how that place gets what it needs. Data in ``launch/sites/*.yaml``, no logic."""

import os
import re
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from leonardo.errors import InputError

SITES = Path(__file__).parent.parent / "launch" / "sites"
CACHE_VARIABLE = "LEONARDO_CACHE"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Constraints(_Strict):
    """Version bounds that hold during set-ups only, where a substitute is newer than the image that it stands for."""

    pip: tuple[str, ...] = ()


class _Substitute(_Strict):
    reason: str = Field(min_length=1)
    """Why it may stand in; shown wherever results are."""
    environment: dict[str, str] = {}
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


class BaseSource(_Strict):
    """How a base image is got: from its registry where that is allowed and can be reached, else the substitute."""

    registry: bool = True
    substitute: Annotated[BootstrapSubstitute | ArchiveSubstitute, Field(discriminator="kind")] | None = None


class Site(_Strict):
    """A site file.

    Attributes:
        name: shown with results.
        cache: folder for everything that can be made again; ``LEONARDO_CACHE`` overrides it.
        bases: image name -> how to get it; an image without an entry comes from its registry.
    """

    name: str
    cache: Path = Path("~/.cache/tmax-leonardo")
    bases: dict[str, BaseSource] = {}

    @field_validator("cache")
    @classmethod
    def _cache_folder(cls, value: Path) -> Path:
        return Path(os.environ.get(CACHE_VARIABLE) or value).expanduser().absolute()

    @field_validator("bases")
    @classmethod
    def _normal_names(cls, value: dict[str, BaseSource]) -> dict[str, BaseSource]:
        return {normal_image(name): source for name, source in value.items()}

    def base(self, image: str) -> BaseSource:
        """How to get ``image``."""
        return self.bases.get(normal_image(image), BaseSource())


def normal_image(name: str) -> str:
    """One name an image: ``docker://HOST/library/ubuntu:22.04`` is ``ubuntu:22.04``, and no tag is ``latest``."""
    short = re.sub(r"^([^/]+\.[^/]+/)?library/", "", name.strip().removeprefix("docker://"))
    return short if ":" in short.rpartition("/")[2] or "@" in short else f"{short}:latest"


def load_site(name: str | Path) -> Site:
    """Read a site: a name in ``launch/sites``, or the path of a YAML file.

    Raises:
        InputError: no such site, or a setting that is unknown or wrong; names the file and the setting.
    """
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else SITES / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(entry.stem for entry in SITES.glob("*.yaml"))) or "none"
        raise InputError(f"No site {name}", f"Known sites: {known}; or give the path of a .yaml file")
    try:
        values = yaml.safe_load(path.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not YAML ({' '.join(str(error).split())[:200]})", "Mend it there") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} holds no settings", "See launch/sites/desk.yaml for an example")
    try:
        site = Site.model_validate(values | {"cache": values.get("cache", Site.model_fields["cache"].default)})
    except ValidationError as error:
        first = error.errors()[0]
        setting = ".".join(str(part) for part in first["loc"])
        message = "unknown setting" if first["type"] == "extra_forbidden" else first["msg"]
        raise InputError(f"{path}: {setting}: {message}", "See launch/sites/desk.yaml for an example") from error
    return site.model_copy(update={"bases": {name: _absolute(base, path) for name, base in site.bases.items()}})


def _absolute(source: BaseSource, site_file: Path) -> BaseSource:
    if not isinstance(source.substitute, ArchiveSubstitute):
        return source
    path = (site_file.parent / source.substitute.path.expanduser()).absolute()
    return source.model_copy(update={"substitute": source.substitute.model_copy(update={"path": path})})
