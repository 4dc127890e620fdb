"""What unpacks ahead never fails a job: what is wrong with its rows or variables is an event."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def unpack(tmp_path: Path, run: Path, rows: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run it in ``tmp_path``, where the rows lie."""
    site = tmp_path / "site.yaml"
    site.write_text(f"name: test\ncache: {tmp_path / 'cache'}\nnode_cache: {tmp_path / 'node'}\nbases: {{}}\n")
    (tmp_path / "rows.jsonl").write_text(rows)
    known = os.environ | {"LEONARDO_SITE": str(site), "PYTHONPATH": str(Path(__file__).parents[2])} | variables
    command = [sys.executable, "-m", "leonardo.jobs.unpack", str(run), "rows.jsonl"]
    return subprocess.run(command, cwd=tmp_path, env=known, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    "rows", ["[1]", "5", '{"env_config": "x"}', '{"env_config": {"env_configs": ["x"]}}', "[" * 100_000]
)
def test_odd_rows_are_an_event(tmp_path: Path, rows: str) -> None:
    (tmp_path / "run").mkdir()
    done = unpack(tmp_path, tmp_path / "run", rows, SLURM_RESTART_COUNT="x")
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert "it ended early" in (tmp_path / "run/events.jsonl").read_text()


def test_a_run_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    done = unpack(tmp_path, tmp_path / "run", "[1]")
    assert done.returncode == 0 and "is gone" in done.stderr and not (tmp_path / "run").exists()
