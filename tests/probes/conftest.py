"""Worlds that lack something."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.probes.worlds import Entered


@pytest.fixture(scope="session")
def entered() -> Iterator[Entered]:
    """Enters them; skips, with the reason, where none can be made."""
    if os.getuid() != 0:
        pytest.skip("needs root, to be two users and to take things away")
    if not all(Path(f"/etc/sub{kind}").is_file() for kind in ("uid", "gid")):
        pytest.skip("no /etc/subuid and /etc/subgid to put others in the place of")
    tried = subprocess.run(["unshare", "--mount", "--propagation", "private", "mount", "-t", "tmpfs", "t", "/mnt"])
    if tried.returncode != 0:
        pytest.skip("this root may not mount")
    folder = Path(tempfile.mkdtemp(prefix="leonardo-worlds-"))
    try:
        folder.chmod(0o755)
        yield Entered(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
