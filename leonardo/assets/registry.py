"""An image from its registry, through Apptainer, as a tar of its root file system.

Untested against a registry so far: the machines this was written on reach none. What is tested is that a registry that
does not answer costs seconds.
"""

import os
import selectors
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

FIRST_SIGN = 6.0
"""Seconds within which the registry must have answered."""

_TIMEOUT = 1800.0
_SIGNS = (b"Copying blob", b"Extracting", b"Getting image source", b"Writing manifest", b"Copying config")


class RegistryError(Exception):
    """The image could not be had from its registry; the reason in one line."""


def pull(image: str, archive: Path) -> None:
    """Write the root file system of ``image`` to ``archive``.

    Raises:
        RegistryError: there is no Apptainer, or the registry cannot be reached, or does not have the image.
    """
    apptainer = shutil.which("apptainer")
    if not apptainer:
        raise RegistryError("not asked for at its registry: Apptainer is not installed")
    fakeroot = [] if os.geteuid() == 0 else ["--fakeroot"]
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".pull-") as folder:
        root = Path(folder) / "root"
        try:
            _build([apptainer, "build", "--disable-cache", *fakeroot, "--sandbox", str(root), f"docker://{image}"])
            # written from inside, where the owners are what the image says
            inside = ["tar", "--one-file-system", "--numeric-owner", "--sort=name", "-C", "/", "-cf", "/mnt/base.tar"]
            inside += ["--exclude=./mnt/base.tar", "--exclude=./.singularity.d", "."]
            binding = f"{archive.parent}:/mnt"
            subprocess.run(
                [apptainer, "exec", *fakeroot, "--containall", "--no-home", "--bind", binding, str(root), *inside],
                check=True,
                capture_output=True,
                cwd="/",
                timeout=_TIMEOUT,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise RegistryError(f"its registry's image could not be unpacked ({error})") from error
        finally:
            if fakeroot and root.exists():  # its owners are subordinate ids, which only fakeroot may remove
                subprocess.run([apptainer, "exec", "--fakeroot", "--writable", str(root), "true"], capture_output=True)
                subprocess.run(
                    ["unshare", "--map-auto", "--map-root-user", "rm", "-rf", str(root)], capture_output=True
                )


def _build(command: list[str]) -> None:
    """Run the build; it is stopped where no sign of the registry comes in time."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
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
                    raise RegistryError(f"its registry gave no {'end' if answered else 'answer'} in {limit:.0f} s")
                if not selector.select(min(left, 1.0)):
                    continue
                chunk = process.stdout.read()
                if not chunk:
                    break
                log += chunk
                answered = answered or any(sign in log for sign in _SIGNS)
        if process.wait() != 0:
            lines = [line for line in log.decode(errors="replace").splitlines() if line.strip()]
            raise RegistryError(
                f"not had from its registry ({lines[-1].strip()[:300] if lines else 'no reason given'})"
            )
