"""``test.sh`` run by the host's bash, with its folders moved below a temporary one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leonardo.tasks.verifier import verifier_files


def run_verifier(
    folder: Path, text: str, path: str = f"{Path(sys.executable).parent}:/usr/bin:/bin"
) -> tuple[str, str]:
    """(reward, status) after the verifier made of ``text`` has run."""
    tests = folder / "tests"
    tests.mkdir()
    for name, content in verifier_files(text).items():
        moved = content.replace(b"/logs/verifier", os.fsencode(folder / "logs")) if name == "test.sh" else content
        (tests / name).write_bytes(moved.replace(b"cd /tests", b"cd " + os.fsencode(tests)))
    result = subprocess.run(["/bin/bash", tests / "test.sh"], env={"PATH": path}, capture_output=True, timeout=60)
    assert result.returncode == 0
    return (folder / "logs" / "reward.txt").read_text().strip(), (folder / "logs" / "status.txt").read_text().strip()


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("def test_a():\n    assert True\n", ("1", "passed")),
        ("def test_a():\n    assert False\n", ("0", "failed")),
        ("def test_a():\n    assert True\ndef test_b():\n    1 / 0\n", ("0", "failed")),
        ("import no_such_module\ndef test_a():\n    assert True\n", ("0", "broken")),
        ("def test_a(:\n", ("0", "broken")),
        ("x = 1\n", ("0", "broken")),
        ("import os\ndef test_a():\n    os._exit(3)\n", ("0", "broken")),
        ("import os, signal\ndef test_a():\n    os.kill(os.getpid(), 9)\n", ("0", "broken")),
    ],
)
def test_a_pytest_module(tmp_path: Path, text: str, outcome: tuple[str, str]) -> None:
    assert run_verifier(tmp_path, text) == outcome


def test_without_pytest_it_is_broken_and_not_failed(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin" / "python3").chmod(0o755)
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    assert run_verifier(tmp_path, "def test_a():\n    assert True\n", path) == ("0", "broken")


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("#!/bin/bash\n[[ -d / ]]\n", ("1", "passed")),
        ("#!/bin/bash\nfalse\n", ("0", "failed")),
        ("#!/bin/sh\nexit 3\n", ("0", "failed")),
        ("#!/no/such/interpreter\n", ("0", "broken")),
        ("#!/bin/bash\nno-such-command\n", ("0", "broken")),
    ],
)
def test_an_executable(tmp_path: Path, text: str, outcome: tuple[str, str]) -> None:
    assert run_verifier(tmp_path, text) == outcome
