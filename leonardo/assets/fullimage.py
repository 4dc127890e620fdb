"""The image that a task stands for, built the long way: by Apptainer, from the whole definition, on our base.

A prepared state is held against it (see :mod:`leonardo.gates.parity`). Of the definition only the header is another:
``Bootstrap: localimage`` from the unpacked base, so that both start from the same files. Packages come from where
set-ups get them. The image belongs to the ids that drivers map, so a driver can take its folder as a base.
"""

import os
import re
import shlex
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from leonardo.assets import containerroot
from leonardo.assets.bases import Base
from leonardo.assets.containerroot import NoContainerRootError
from leonardo.assets.failures import classify
from leonardo.assets.packages import INSIDE, PREPARATION
from leonardo.errors import FailureClass, InfrastructureError
from leonardo.holding import in_turn
from leonardo.sandbox import apptainer
from leonardo.sandbox.driver import SetUpResult
from leonardo.sandbox.identities import Identities
from leonardo.sandbox.namespaces import host_files
from leonardo.tasks.definition import parse_definition

_PREFIX = ".full-"
_CERTIFICATES = "certificates.crt"
_SCRATCH = ("tmp", "var/tmp")
_FINISH = 60.0
_REMOVAL = 600.0
_LOG_BYTES = 64 << 10


class FullImageError(Exception):
    """Apptainer could not build the image: the class and one line on why."""

    def __init__(self, failure: FailureClass, reason: str) -> None:
        super().__init__(reason)
        self.failure = failure


@dataclass(frozen=True)
class FullImage:
    """An image that is there.

    Attributes:
        root: its root file system, with the owners that a driver's layers have.
        environment: every variable that a command in it sees when Apptainer runs it.
        seconds: how long the build took.
    """

    root: Path
    environment: Mapping[str, str]
    seconds: float


@dataclass(frozen=True)
class BuildPlace:
    """Where and with what a build is done.

    Attributes:
        folder: the image appears below it; held by :func:`builds_below`.
        packages: what is lent to the build, see :class:`leonardo.assets.packages.PackageNetwork`; one build at a time.
        variables: those of the package network.
        timeout: seconds that the build may take.
        stopped: ends it when set.
    """

    folder: Path
    packages: Path
    variables: Mapping[str, str]
    timeout: float
    stopped: threading.Event = field(default_factory=threading.Event)


def full_definition(definition: str, base: Path, environment: Mapping[str, str]) -> str:
    """``definition`` with another header, and the base's own variables, which a folder cannot carry."""
    start = re.search(r"^[ \t]*%", definition, re.MULTILINE)
    sections = definition[start.start() :] if start else ""
    variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items())
    header = f"Bootstrap: localimage\nFrom: {base}\n\n" + (f"%environment\n{variables}\n" if variables else "")
    # the place where packages are lent must be there before they can be
    return f'{header}{sections}\n\n%setup\nmkdir -p "${{APPTAINER_ROOTFS}}{INSIDE}"\n'


@contextmanager
def builds_below(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for full images: one caller at a time, and what one that was killed left there goes first.

    Raises:
        InfrastructureError: none can be built here; says what is missing.
    """
    _needed()
    with in_turn(folder / "lock"):
        for leftover in folder.glob(f"{_PREFIX}*"):
            remove(leftover)
        yield


@contextmanager
def full_image(definition: str, base: Base, unpacked: Path, place: BuildPlace) -> Iterator[FullImage]:
    """Build the image of ``definition``; it is removed at the end of the block.

    Args:
        unpacked: the base as a driver unpacked it.

    Raises:
        FullImageError: the build failed, or took too long.
        InfrastructureError: there is no Apptainer, or no user namespace for it.
        InputError: the definition is none.
    """
    parse_definition(definition)
    program, ids = _needed()
    work = Path(tempfile.mkdtemp(dir=place.folder, prefix=_PREFIX))
    try:
        if os.geteuid() == 0:
            os.chown(work, *ids.root)
        yield _Build(program, base, unpacked, place, work).run(full_definition(definition, unpacked, base.environment))
    finally:
        remove(work)


def _needed() -> tuple[Path, Identities]:
    program = apptainer.find()
    if program is None:
        raise InfrastructureError(
            "Full images are built by Apptainer, which is not installed", "make apptainer", FailureClass.KERNEL_FEATURE
        )
    try:
        return program, containerroot.own_ids()
    except NoContainerRootError as error:
        raise InfrastructureError(
            f"A full image needs a user namespace with a range of ids ({error})",
            "Give the user a range in /etc/subuid and /etc/subgid, or run as root",
            FailureClass.KERNEL_FEATURE,
        ) from error


def remove(work: Path) -> None:
    """Remove a build's folder, which belongs to ids of the namespace."""
    if os.geteuid():
        with tempfile.TemporaryFile() as output:
            containerroot.run(["rm", "-rf", work], output, timeout=_REMOVAL, environment=_search_path())
    shutil.rmtree(work, ignore_errors=True)


class _Build:
    """One build, in ``work``."""

    def __init__(self, program: Path, base: Base, unpacked: Path, place: BuildPlace, work: Path) -> None:
        self._program = program
        self._unpacked = unpacked
        self._place = place
        self._work = work
        self._root = work / "root"
        # of a link's program the folder where it really is, with the libraries beside it
        self._installed = program.resolve().parent.parent
        installed = [self._installed] if self._installed != Path("/usr") else []
        self._reach = [unpacked, place.packages, work, *installed]
        files, certificates = host_files()
        own = {"DEBIAN_FRONTEND": "noninteractive", **base.environment, **place.variables}
        for path, text in files.items():
            if path in certificates.values():
                (place.packages / _CERTIFICATES).write_text(text)
                own |= dict.fromkeys(certificates, f"{INSIDE}/{_CERTIFICATES}")
        self._variables = {f"APPTAINERENV_{name}": value for name, value in own.items()}
        folders = {f"APPTAINER_{name}DIR": str(work) for name in ("TMP", "CACHE", "CONFIG")}
        self._environment = _search_path() | {"HOME": str(work), **folders}

    def run(self, definition: str) -> FullImage:
        began = time.monotonic()
        source = self._work / "image.def"
        source.write_text(definition)
        source.chmod(0o644)
        self._prepare()
        binds = [f"{self._place.packages}:{INSIDE}", *(f"{self._work / name}:/{name}" for name in _SCRATCH)]
        options = [word for bind in binds for word in ("--bind", bind)]
        command = [self._program, "build", "--disable-cache", "--notest", *options, "--sandbox", self._root, source]
        exit_code, log = self._call(command, self._place.timeout, self._variables)
        seconds = time.monotonic() - began
        failed = classify(SetUpResult(exit_code, log, seconds, timed_out=exit_code == 124), self._place.timeout)
        if failed:
            raise FullImageError(*failed)
        exit_code, text = self._call(
            [self._program, "--silent", "exec", "--contain", "--cleanenv", "--no-home", self._root, "env", "-0"],
            _FINISH,
        )
        if exit_code:
            raise FullImageError(FailureClass.RUNTIME, f"the image does not run: {apptainer.last_line(text)}")
        environment = dict(entry.partition("=")[::2] for entry in text.split("\0") if "=" in entry)
        self._finish()
        return FullImage(self._root, environment, round(seconds, 1))

    def _prepare(self) -> None:
        """Temporary folders of its own: Apptainer would show it the host's, and keep out of the image what is there."""
        steps = ["set -e", PREPARATION.replace(INSIDE, shlex.quote(str(self._place.packages)))]
        for name in _SCRATCH:
            own, bases = shlex.quote(str(self._work / name)), shlex.quote(str(self._unpacked / name))
            steps.append(f"mkdir -p {shlex.quote(str((self._work / name).parent))}")
            steps.append(f"if [ -d {bases} ]; then cp -a {bases} {own}; else mkdir -m 1777 {own}; fi")
        self._shell(steps)

    def _finish(self) -> None:
        """Put the temporary folders into the image."""
        steps = ["set -e", f"cd {shlex.quote(str(self._root))}", f"rmdir .{INSIDE}"]
        for name in _SCRATCH:
            own, bases = shlex.quote(str(self._work / name)), shlex.quote(str(self._unpacked / name))
            steps.append(f"rm -rf {name}")
            if self._installed.is_relative_to(f"/{name}"):  # Apptainer mounts over a folder of its own, there
                way = shlex.quote(str(self._work / name / self._installed.relative_to(f"/{name}").parts[0]))
                steps.append(f"[ ! -d {way} ] || find {way} -depth -type d -empty -delete")
            # what neither the base had nor the script used is not there
            steps.append(
                f"if [ -d {bases} ] || ! rmdir {own} 2>&1; then mkdir -p {Path(name).parent}; mv {own} {name}; fi"
            )
        self._shell(steps)

    def _shell(self, steps: list[str]) -> None:
        exit_code, log = self._call(["sh", "-c", "\n".join(steps)], _FINISH)
        if exit_code:
            raise InfrastructureError(f"A full image could not be handled ({apptainer.last_line(log)})")

    def _call(self, command: list[str | Path], timeout: float, variables: Mapping[str, str] = {}) -> tuple[int, str]:
        environment = {**self._environment, **variables}
        with tempfile.TemporaryFile() as output:
            exit_code = containerroot.run(command, output, timeout=timeout, environment=environment, reach=self._reach)
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - _LOG_BYTES))
            return exit_code, output.read().decode(errors="replace")


def _search_path() -> dict[str, str]:
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
