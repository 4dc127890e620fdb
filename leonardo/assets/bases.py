"""Base images: root file systems as tar archives, named by their content.

An image comes from its registry through Apptainer where that is installed and the registry can be reached; else from
the site's substitute. What was tried, what failed and what stands in is written beside the archive, once: an image that
has been substituted stays substituted until its record is removed, so that runs on one machine share their bases.
"""

import json
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from leonardo.assets.bootstrap import bootstrap, choose_release
from leonardo.assets.packages import PackageNetwork, host_archive, source_lines
from leonardo.assets.registry import RegistryError, pull
from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.files import digest_of, sha256_file, write_json
from leonardo.site import ArchiveSubstitute, BaseSource, BootstrapSubstitute, Site, normal_image

RECIPE_VERSION = 1
"""Raise it where the same site file would now give another base."""


@dataclass(frozen=True)
class Base:
    """A base image that is there.

    Attributes:
        image: the image that definitions name.
        digest: hex SHA-256 of the archive.
        archive: the root file system, a plain tar.
        substitution: what stands in for the image and why, ``""`` where it is the image itself.
        registry_failure: why the registry did not serve, ``""`` where it did or was not asked.
        environment: variables that every command on it sees.
        recipe: what it was made by; together with ``packages`` it says what is inside.
        packages: ``name=version`` of the distribution's packages in it.
        release: the distribution release it was made of on this host, ``""`` if it was not.
    """

    image: str
    digest: str
    archive: Path
    substitution: str
    registry_failure: str
    environment: dict[str, str]
    recipe: dict[str, Any]
    packages: list[str] = field(default_factory=list)
    release: str = ""
    seconds: float = 0.0


class Bases:
    """The bases of a site, below ``root``: ``<digest>.tar`` and a record by image and recipe."""

    def __init__(self, root: Path, site: Site) -> None:
        self._root = root
        self._site = site

    def get(self, image: str, note: Callable[[str], None] = lambda text: None) -> Base:
        """The base of ``image``, made if it is not there or not whole.

        Raises:
            InfrastructureError: it cannot be had here; says what was tried.
        """
        image = normal_image(image)
        source, recipe, record = self._recipe(image)
        known = self._read(record)
        if known is not None:
            return known
        self._root.mkdir(parents=True, exist_ok=True)
        note(f"base {image}: making it")
        started = time.monotonic()
        with tempfile.TemporaryDirectory(dir=self._root, prefix=".making-") as folder:
            archive = Path(folder) / "base.tar"
            substitution, failure, release = self._make(image, source, archive, note)
            digest = sha256_file(archive)
            packages = _packages(archive)
            archive.chmod(0o644)
            archive.replace(self._root / f"{digest}.tar")
        substitute = source.substitute if substitution else None
        base = Base(
            image=image,
            digest=digest,
            archive=self._root / f"{digest}.tar",
            substitution=substitution,
            registry_failure=failure,
            environment=dict(substitute.environment) if substitute else {},
            recipe=recipe,
            packages=packages,
            release=release,
            seconds=round(time.monotonic() - started, 2),
        )
        write_json(record, asdict(base) | {"archive": base.archive.name})
        return base

    def known(self, image: str) -> Base:
        """The base of ``image`` that is there. Raises InfrastructureError where none is, or not any more."""
        _, _, record = self._recipe(normal_image(image))
        known = self._read(record)
        if known is None:
            raise InfrastructureError(
                f"Base image {image} is not in {self._root}",
                "Make it where there is a network and a store that can be written to",
                FailureClass.MIRROR,
            )
        return known

    def network(self, base: Base, root: Path) -> PackageNetwork:
        """What set-ups on ``base`` are lent, with its folders below ``root``."""
        substitute = self._site.base(base.image).substitute if base.substitution else None
        return PackageNetwork(
            root / base.digest[:16],
            source_lines(host_archive(base.release)) if base.release else (),
            substitute.set_up_constraints.pip if substitute else (),
        )

    def _recipe(self, image: str) -> tuple[BaseSource, dict[str, Any], Path]:
        """How an image is got, what decides its content, and where its record lies."""
        source = self._site.base(image)
        recipe = {"image": image, "version": RECIPE_VERSION, "source": source.model_dump(mode="json")}
        if isinstance(source.substitute, ArchiveSubstitute):
            recipe["source"]["substitute"].pop("path")  # a host's own
            recipe["archive"] = _digest_of_archive(source.substitute.path)
        name = f"{image.replace('/', '_').replace(':', '_')}-{digest_of(recipe)[:12]}.json"
        return source, recipe, self._root / name

    def _read(self, record: Path) -> Base | None:
        """A base that was made before, if its archive is still what the record says."""
        try:
            values = json.loads(record.read_text())
            base = Base(**values | {"archive": self._root / values["archive"]})
            return base if sha256_file(base.archive) == base.digest else None
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _make(self, image: str, source: BaseSource, archive: Path, note: Callable[[str], None]) -> tuple[str, str, str]:
        """Write the archive. Returns the substitution, why the registry failed, and the release."""
        failure = ""
        if source.registry:
            try:
                pull(image, archive)
                return "", "", ""
            except RegistryError as error:
                failure = str(error)
        substitute = source.substitute
        instead = f"base {image}: {f'{failure}; ' if failure else ''}in its stead"
        if isinstance(substitute, BootstrapSubstitute):
            release = choose_release(substitute.suite)
            note(f"{instead} a {release} root file system is made")
            bootstrap(substitute, release, archive)
            return f"{release} {substitute.variant} by mmdebstrap: {substitute.reason}", failure, release
        if isinstance(substitute, ArchiveSubstitute):
            note(f"{instead} {substitute.path.name} is taken")
            shutil.copyfile(substitute.path, archive)
            return f"archive {substitute.path.name}: {substitute.reason}", failure, ""
        raise InfrastructureError(
            f"base image {image} cannot be had: {failure or 'this site asks no registry'}",
            "Let this machine reach the registry, name a substitute in the site file (bases), or bring a bundle "
            "(leonardo assets unbundle)",
            FailureClass.MIRROR,
        )


def _digest_of_archive(path: Path) -> str:
    if not path.is_file():
        raise InputError(f"The site's base archive {path} does not exist", "Mend 'path' in the site file")
    return sha256_file(path)


def _packages(archive: Path) -> list[str]:
    """``name=version`` of what dpkg says is installed in a root file system."""
    packages: list[str] = []
    try:
        with tarfile.open(archive) as content:
            for member in content:
                if member.name.removeprefix("./") == "var/lib/dpkg/status" and (stream := content.extractfile(member)):
                    for paragraph in stream.read().decode(errors="replace").split("\n\n"):
                        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line[1:])
                        if "installed" in fields.get("Status", "").split():
                            packages.append(f"{fields['Package']}={fields['Version']}")
                    break
    except (tarfile.TarError, KeyError) as error:
        raise InputError(
            f"{archive.name} is no root file system archive ({error})", "Give a plain tar of one"
        ) from error
    return sorted(packages)
