import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from leonardo.gates.leftovers import belongings, left_over, own_temporary_folder
from leonardo.sandbox import cgroups
from tests.processes import running


def test_a_process_is_seen_until_it_has_ended(tmp_path: Path) -> None:
    before = belongings(tmp_path)
    with running(["sleep", "60"]) as process:
        found = left_over(before, tmp_path, patience=0)
        assert any(entry.startswith(f"process {process.pid} ") for entry in found)
    assert left_over(before, tmp_path) == []


def test_an_unfinished_file_is_seen(tmp_path: Path) -> None:
    (tmp_path / "deltas").mkdir()
    before = belongings(tmp_path)
    (tmp_path / "deltas" / ".making-x").touch()
    (tmp_path / "deltas" / "finished").touch()
    assert left_over(before, tmp_path, patience=0) == [f"file {tmp_path / 'deltas' / '.making-x'}"]


def test_a_temporary_file_of_our_own_is_seen_and_no_other(tmp_path: Path) -> None:
    with own_temporary_folder() as folder:
        before = belongings(tmp_path)
        with tempfile.TemporaryDirectory(prefix="leonardo-x") as left:
            assert Path(left).parent == folder
            assert left_over(before, tmp_path, patience=0) == [f"file {left}"]
        assert left_over(before, tmp_path) == []
    assert not folder.exists()


def test_a_process_that_escaped_its_parent_is_seen() -> None:
    script = """
import subprocess, sys
from leonardo.gates.leftovers import become_subreaper, belongings, left_over
become_subreaper()
from pathlib import Path
before = belongings(Path("/nowhere"))
subprocess.run(["sh", "-c", "setsid sleep 30 & echo"], stdout=subprocess.DEVNULL)
found = left_over(before, Path("/nowhere"), patience=0.2)
assert len(found) == 1 and " sleep " in found[0], found
import os, signal
os.kill(int(found[0].split()[1]), signal.SIGKILL)
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], check=True, cwd=root, timeout=30)


def test_a_port_that_is_still_held_is_seen(tmp_path: Path) -> None:
    before = belongings(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert left_over(before, tmp_path, patience=0) == [f"port 127.0.0.1:{server.getsockname()[1]}"]
    assert left_over(before, tmp_path, patience=0) == []


def test_a_cgroup_that_was_not_removed_is_seen(tmp_path: Path) -> None:
    groups = cgroups.find()
    if groups is None:
        pytest.skip("this process may make no cgroups here")
    before = belongings(tmp_path)
    group = groups.make(memory=1 << 26, processes=8)
    try:
        assert all(entry.startswith("cgroup ") for entry in left_over(before, tmp_path, patience=0))
        assert left_over(before, tmp_path, patience=0)
    finally:
        group.close_descriptors()
        group.remove()
    assert left_over(before, tmp_path) == []
