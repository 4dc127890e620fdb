"""An image from its registry, through Apptainer, as a tar of its root file system.

Untested against a registry so far: the machines this was written on reach none. What is tested is the way from an image
to the archive (with a folder as the image's source), and that a registry that does not answer costs seconds.
"""

import os
import selectors
import subprocess
import tempfile
import time
from pathlib import Path

from leonardo.assets.failures import without_hosts
from leonardo.sandbox.apptainer import find

SOURCE = "docker://{image}"
"""How Apptainer is told where an image comes from."""

FIRST_SIGN = 6.0
"""Seconds within which the registry must have answered."""

_ASKED = "its registry was asked through Apptainer"
_TIMEOUT = 1800.0
_SIGNS = (b"Copying blob", b"Extracting", b"Getting image source", b"Writing manifest", b"Copying config")
# what Apptainer adds to an image, and where the archive is written
_LEFT_OUT = (
    "./mnt/base.tar",
    "./.singularity.d",
    "./.exec",
    "./.run",
    "./.shell",
    "./.test",
    "./environment",
    "./singularity",
)


class RegistryError(Exception):
    """The image could not be had from its registry; the reason in one line."""


def pull(image: str, archive: Path) -> None:
    """Write the root file system of ``image`` to ``archive``.

    Raises:
        RegistryError: there is no Apptainer, or the registry cannot be reached, or does not have the image.
    """
    program = find()
    if program is None:
        raise RegistryError("its registry was not asked, for Apptainer is not installed")
    apptainer = str(program)
    fakeroot = [] if os.geteuid() == 0 else ["--fakeroot"]
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".pull-") as folder:
        root, out = Path(folder) / "root", Path(folder) / "out"
        out.mkdir()
        try:
            _build(
                [apptainer, "build", "--disable-cache", *fakeroot, "--sandbox", str(root), SOURCE.format(image=image)]
            )
            # written from inside, where the owners are what the image says
            inside = ["tar", "--one-file-system", "--numeric-owner", "--sort=name", "-C", "/", "-cf", "/mnt/base.tar"]
            inside += [*(f"--exclude={path}" for path in _LEFT_OUT), "."]
            options = [*fakeroot, "--containall", "--no-home", "--no-mount", "tmp,bind-paths", "--bind", f"{out}:/mnt"]
            _run([apptainer, "--silent", "exec", *options, str(root), *inside])
            (out / "base.tar").replace(archive)
        finally:
            if fakeroot and root.exists():  # its owners are subordinate ids: root of such a namespace may remove it
                remove = ["rm", "-rf", str(root)]
                subprocess.run(["unshare", "--map-auto", "--map-root-user", *remove], capture_output=True, check=False)


def _run(command: list[str]) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, cwd="/", env=_environment(), timeout=_TIMEOUT)
    except subprocess.CalledProcessError as error:
        raise RegistryError(f"{_ASKED}, and what came could not be read: {_reason(error.stderr)}") from error
    except (OSError, subprocess.SubprocessError) as error:
        raise RegistryError(f"{_ASKED}, and what came could not be read: {without_hosts(str(error))}") from error


def _build(command: list[str]) -> None:
    """Run the build; it is stopped where no sign of the registry comes in time."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        env=_environment(),
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        started, answered, log = time.monotonic(), False, b""
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while True:
                limit = _TIMEOUT if answered else FIRST_SIGN
                left = started + limit - time.monotonic()
                if left <= 0:
                    process.terminate()
                    raise RegistryError(f"{_ASKED} and gave no {'end' if answered else 'answer'} in {limit:.0f} s")
                if not selector.select(min(left, 1.0)):
                    continue
                chunk = process.stdout.read()
                if not chunk:
                    break
                log += chunk
                answered = answered or any(sign in log for sign in _SIGNS)
        if process.wait() != 0:
            raise RegistryError(f"{_ASKED} and said: {_reason(log)}")


def _reason(log: bytes) -> str:
    lines = [" ".join(line.split()) for line in log.decode(errors="replace").splitlines() if line.strip()]
    return without_hosts(lines[-1])[:300] if lines else "no reason given"


def _environment() -> dict[str, str]:
    """As root in a container that lacks it, Apptainer would ask for a capability that it may not have."""
    return {**os.environ, **({"APPTAINER_DROP_CAPS": "CAP_SYS_RESOURCE"} if os.geteuid() == 0 else {})}
