"""What the machine itself sees in an unpacked layer, as root of the ids that the layer belongs to."""

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from leonardo.assets import containerroot
from leonardo.assets.containerroot import NoContainerRootError
from leonardo.errors import InfrastructureError

_PATIENCE = 600.0
_ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
_TAR = (
    "tar --sort=name --numeric-owner --xattrs --xattrs-include='*' --format=pax "
    "--pax-option=delete=atime,delete=ctime,exthdr.name=%d/%f -cf - ."
)
# by the environment, which only the user may read; everybody sees a command line
_GREP = 'grep -rlaF --devices=skip -f <(printf %s "$WANTED") .'


def layer_digest(folder: Path) -> str:
    """SHA-256 over everything in a layer, as tar writes it: content, owners, modes, times, attributes."""
    exit_code, output = _run(folder, f"set -o pipefail; {_TAR} | sha256sum")
    if exit_code:
        raise InfrastructureError(f"{folder} cannot be read ({output.strip()[-200:]})")
    return output.split()[0]


def search_layer(folder: Path, wanted: Mapping[str, str]) -> list[str]:
    """Where in a layer one of ``wanted`` (text -> what it is) is: a line ``path: what`` for each."""
    if not wanted or not _files_with(folder, "\n".join(wanted)):
        return []
    return sorted(f"{path}: {what}" for text, what in wanted.items() for path in _files_with(folder, text))


def _files_with(folder: Path, text: str) -> list[str]:
    exit_code, output = _run(folder, _GREP, {"WANTED": text})
    if exit_code > 1:
        raise InfrastructureError(f"{folder} cannot be searched ({output.strip()[-200:]})")
    return [f"/{line.removeprefix('./')}" for line in output.splitlines()]


def _run(folder: Path, command: str, variables: Mapping[str, str] = {}) -> tuple[int, str]:
    words = ["bash", "-c", f"cd {shlex.quote(str(folder))} && {{ {command}; }}"]
    environment = {**_ENVIRONMENT, **variables}
    with tempfile.TemporaryFile() as output:
        try:
            if os.geteuid() == 0 == folder.stat().st_uid:  # unpacked with one id only: no other root may read it
                raise NoContainerRootError
            exit_code = containerroot.run(words, output, timeout=_PATIENCE, environment=environment, reach=[folder])
        except NoContainerRootError:  # the layers are the caller's own then
            done = subprocess.run(words, stdout=output, stderr=output, env=environment, timeout=_PATIENCE, check=False)
            exit_code = done.returncode
        output.seek(0)
        return exit_code, output.read().decode(errors="replace")
