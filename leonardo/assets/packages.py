"""The host's package network, lent to set-ups: where apt and pip get packages from, and what they keep between set-ups.

A set-up sees one extra folder, :data:`INSIDE`, and variables that point apt and pip into it. Mirrors, lists, downloaded
packages and caches live there and nowhere else, so none of them gets into a delta, which stays small and names no host.
The folder outlives the set-up on the host side: the next one on the same base downloads nothing twice. What is in it
was written by set-ups and is believed by later ones: give data that is not trusted a store of its own.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from leonardo.files import write_atomic

INSIDE = "/run/leonardo-set-up"
"""Where a set-up sees the folder."""

_PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "default-timeout", "retries")
_APT_SETTINGS = re.compile(r"Acquire::(Check-Valid-Until|Check-Date|Retries|https?::(Proxy|Timeout|Pipeline-Depth)) \"")
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "ftp_proxy")


@dataclass(frozen=True)
class ArchiveEntry:
    """A part of the distribution's package archive that the host's apt knows."""

    uri: str
    suite: str
    component: str


def host_archive(release: str) -> list[ArchiveEntry]:
    """The host's sources of ``release`` (a code name) with its updates and security parts; empty where there are none.

    Third-party sources have other code names, or none of the archive's components, and are left out.
    """
    listing = _output(
        "apt-get",
        "indextargets",
        "--format",
        "$(REPO_URI)|$(RELEASE)|$(COMPONENT)|$(ORIGIN)",
        "Created-By: Packages",
    )
    suites = {release, f"{release}-updates", f"{release}-security"}
    entries = []
    for line in listing.splitlines():
        uri, suite, component, origin = line.split("|", 3)
        if suite in suites and component in ("main", "universe") and origin in ("Debian", "Ubuntu", "$(ORIGIN)"):
            entry = ArchiveEntry(uri, suite, component)
            if entry not in entries:
                entries.append(entry)
    return entries if any(entry.suite == release for entry in entries) else []


def host_release() -> str:
    """The host's own release code name, ``""`` where it has none."""
    try:
        text = Path("/etc/os-release").read_text()
    except OSError:
        return ""
    match = re.search(r'^VERSION_CODENAME="?([\w-]+)"?$', text, re.MULTILINE)
    return match.group(1) if match else ""


def source_lines(entries: Iterable[ArchiveEntry]) -> list[str]:
    """One-line sources for apt, a line a suite."""
    parts: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        parts.setdefault((entry.uri, entry.suite), []).append(entry.component)
    return [f"deb {uri} {suite} {' '.join(components)}" for (uri, suite), components in parts.items()]


PREPARATION = f"mkdir -p {INSIDE}/lists/partial {INSIDE}/cache/archives/partial {INSIDE}/pip\n"
"""Makes the folders in a folder; run as a set-up, so that they belong to a set-up's root (pip insists on that)."""


class PackageNetwork:
    """What set-ups on one base are lent. Each set-up that runs at the same time needs a folder of its own.

    Args:
        root: folder for the folders; may be deleted at any time when no set-up runs.
        sources: apt source lines for a base whose own were taken out; none leaves the base's own in force.
        pip_constraints: version bounds for pip.
    """

    def __init__(self, root: Path, sources: Iterable[str] = (), pip_constraints: Iterable[str] = ()) -> None:
        self._root = root
        self._sources = list(sources)
        self._constraints = list(pip_constraints)
        self._apt_settings = [
            f"{line}\n" for line in _output("apt-config", "dump").splitlines() if _APT_SETTINGS.match(line)
        ]
        self._variables = self._find_variables()
        self._ready: set[Path] = set()

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a set-up."""
        return dict(self._variables)

    def folder(self, slot: int | str) -> Path:
        """The host folder of a slot, ready to be mounted at :data:`INSIDE`."""
        folder = self._root / f"slot-{slot}"
        if folder not in self._ready:
            self._make(folder)
            self._ready.add(folder)
        self._share_packages(folder)
        return folder

    @staticmethod
    def is_prepared(folder: Path) -> bool:
        """Whether :data:`PREPARATION` has run in a folder."""
        return (folder / "pip").is_dir()

    def _make(self, folder: Path) -> None:
        self._root.mkdir(parents=True, exist_ok=True)
        self._root.parent.chmod(0o700)  # the folders below are for everybody, since a set-up's root is nobody here
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        configuration = [
            f'Dir::State::Lists "{INSIDE}/lists";\n',
            f'Dir::Cache "{INSIDE}/cache";\n',
            # what is captured is written to disk anyway, once and in whole
            'DPkg::Options {"--force-unsafe-io";};\n',
            'Acquire::Languages "none";\n',
            *self._apt_settings,
        ]
        if self._sources:
            configuration.append(f'Dir::Etc::SourceList "{INSIDE}/sources.list";\n')
            write_atomic(folder / "sources.list", "".join(f"{line}\n" for line in self._sources))
        write_atomic(folder / "apt.conf", "".join(configuration))
        if self._constraints:
            write_atomic(folder / "constraints.txt", "".join(f"{line}\n" for line in self._constraints))

    def _share_packages(self, folder: Path) -> None:
        """Give the slot every package that another one downloaded (as hard links: they are written once)."""
        archives = folder / "cache" / "archives"
        if not archives.is_dir():
            return
        for package in self._root.glob("slot-*/cache/archives/*.deb"):
            if not (archives / package.name).exists():
                try:
                    os.link(package, archives / package.name)
                except OSError:
                    continue  # gone meanwhile, or another owner's: it is downloaded again

    def _find_variables(self) -> dict[str, str]:
        variables = {
            "APT_CONFIG": f"{INSIDE}/apt.conf",
            "PIP_CACHE_DIR": f"{INSIDE}/pip",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
        }
        if self._constraints:
            variables["PIP_CONSTRAINT"] = f"{INSIDE}/constraints.txt"
        for name in _PROXIES:
            if value := os.environ.get(name) or os.environ.get(name.upper()):
                variables[name] = variables[name.upper()] = value
        for name, value in _pip_settings().items():
            # folders of the host mean nothing inside
            words = [word for word in value.split() if not word.startswith(("file:", "/"))]
            if words:
                variables["PIP_" + name.upper().replace("-", "_")] = " ".join(words)
        return variables


def _pip_settings() -> dict[str, str]:
    """Settings of the host's pip that say where packages come from; the environment's before the files'."""
    settings: dict[str, str] = {}
    # an environment without pip of its own is asked through the host's
    listing = _output(sys.executable, "-m", "pip", "config", "list") or _output("pip3", "config", "list")
    for line in listing.splitlines():
        match = re.fullmatch(r"(\S+)\.(\S+?)=(['\"])(.*)\3", line)
        if match and match.group(1) in ("global", "install", ":env:") and match.group(2) in _PIP_SETTINGS:
            name = match.group(2)
            if match.group(1) == ":env:" or name not in settings:
                settings[name] = match.group(4)
    return settings


def _output(*command: str) -> str:
    """What a command prints, ``""`` where it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
