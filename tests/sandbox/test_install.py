"""The install script: leaves what works, and says in one line where there is nothing to be had. (What it installs is
tried by the conformance suite, where it was run.)"""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "install-apptainer.sh"


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A search path without package managers."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("bash", "cat", "dirname", "grep", "head", "id", "mktemp", "rm", "sed"):
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    return folder


def _run(prefix: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    bash = shutil.which("bash") or "bash"
    environment = {"PATH": str(programs)}
    return subprocess.run([bash, SCRIPT, prefix], capture_output=True, text=True, env=environment, check=False)


def test_an_apptainer_that_works_is_left_alone(tmp_path: Path, programs: Path) -> None:
    program = tmp_path / "prefix" / "bin" / "apptainer"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/bash\necho apptainer version 9.9\n")
    program.chmod(0o755)
    done = _run(tmp_path / "prefix", programs)
    assert (done.returncode, done.stdout) == (0, f"apptainer: 9.9 at {program}\n")


def test_where_there_is_none_to_be_had_one_line_says_so(tmp_path: Path, programs: Path) -> None:
    done = _run(tmp_path / "prefix", programs)
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "cannot be installed here" in done.stderr
    assert "apt-get" in done.stderr
    assert not (tmp_path / "prefix").exists()
