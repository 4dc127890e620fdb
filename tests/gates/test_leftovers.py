import subprocess
import sys
from pathlib import Path

from leonardo.gates.leftovers import belongings, left_over


def test_a_process_is_seen_until_it_has_ended() -> None:
    before = belongings()
    with subprocess.Popen([sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'])"]) as process:
        try:
            found = left_over(before, patience=0)
            assert any(entry.startswith(f"process {process.pid} ") for entry in found)
        finally:
            subprocess.run(["pkill", "-P", str(process.pid)], check=False)
            process.kill()
    assert left_over(before) == []


def test_an_unfinished_file_is_seen(tmp_path: Path) -> None:
    before = belongings((tmp_path,))
    (tmp_path / ".making-x").touch()
    (tmp_path / "finished").touch()
    assert left_over(before, (tmp_path,), patience=0) == [f"file {tmp_path / '.making-x'}"]


def test_a_process_that_escaped_its_parent_is_seen() -> None:
    script = """
import subprocess, sys
from leonardo.gates.leftovers import become_subreaper, belongings, left_over
become_subreaper()
before = belongings()
subprocess.run(["sh", "-c", "setsid sleep 30 & echo"], stdout=subprocess.DEVNULL)
found = left_over(before, patience=0.2)
assert len(found) == 1 and " sleep " in found[0], found
import os, signal
os.kill(int(found[0].split()[1]), signal.SIGKILL)
"""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", script], check=True, cwd=root, timeout=30)
