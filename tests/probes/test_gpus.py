"""The GPUs' probes where there is no GPU; tests/gpu/probes.py runs them on a machine that has two."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from leonardo.probes import gpus
from leonardo.probes.programs import run
from tests.probes.worlds import stand_in

PROJECT = Path(__file__).parents[2]


def test_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as are wanted, or the number; a driver that is broken is quoted."""
    stand_in(tmp_path, monkeypatch, "nvidia-smi", "printf 'NVIDIA A100, 65536, 580.159.03\\n%.0s' 1 2")
    assert gpus.gpus(2).what == "2: NVIDIA A100, 65536 MiB, driver 580.159.03" and gpus.gpus(2).state == "ok"
    assert gpus.gpus(0).state == "ok"
    assert (gpus.gpus(4).state, gpus.gpus(4).what) == ("missing", "2 of 4")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert "--node" in gpus.gpus(4).remedy
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert gpus.gpus(4).remedy.startswith("This job was given no more")
    stand_in(tmp_path, monkeypatch, "nvidia-smi", "echo 'NVIDIA A100, 65536, 550.54'")
    old = gpus.gpus(1)
    assert old.state == "degraded" and "580" in old.costs and old.what.endswith("driver 550.54")
    stand_in(
        tmp_path,
        monkeypatch,
        "nvidia-smi",
        "echo 'Failed to initialize NVML: Driver/library version mismatch' >&2; exit 18",
    )
    assert gpus.gpus(1).what == "0 of 1 (Failed to initialize NVML: Driver/library version mismatch)"
    assert gpus.gpus(0).what == "none, and none are expected"


def test_meet() -> None:
    """Two processes reduce a tensor together, on processors in place of GPUs."""
    found = gpus.reduced(Path(sys.executable), "gloo", 2, {"GLOO_SOCKET_IFNAME": "lo"}, 90)
    assert found.state == "ok" and found.what.startswith("2 GPUs reduce 67 MB together in "), found


@pytest.mark.slow
def test_do_not_meet() -> None:
    """An interface that is not there is quoted; the site's variables reach the processes."""
    found = gpus.reduced(Path(sys.executable), "gloo", 2, {"GLOO_SOCKET_IFNAME": "none0"}, 90)
    assert found.state == "missing" and "none0" in found.what, found


def test_too_few() -> None:
    """PyTorch sees fewer than the node should have."""
    import torch

    seen = torch.cuda.device_count()
    found = gpus.nccl(Path(sys.executable), seen + 2)
    assert found.state == "missing" and f"sees {seen} GPUs" in found.what


def test_no_environment(tmp_path: Path) -> None:
    """Was not tried, and says how it can be."""
    found = gpus.nccl(tmp_path / "python", 2)
    assert (found.state, found.remedy) == ("degraded", "make upstream-env")


def test_nothing_outlives_its_time() -> None:
    """A program that hangs is ended with what it has started, also where that holds its output open."""
    started = time.monotonic()
    said = run("sh", "-c", "echo first; sleep 60.25 & sleep 60.25", seconds=0.5)
    assert time.monotonic() - started < 10
    assert (said.well, said.output, said.words) == (False, "first", "no answer within 0.5 s")
    time.sleep(0.2)
    assert not [each for each in psutil.process_iter(["cmdline"]) if "60.25" in (each.info["cmdline"] or ())]


def test_from_a_checkout_alone() -> None:
    """A Python without any package runs them, and prints JSON."""
    command = [sys.executable, "-S", "-m", "leonardo.probes", "--gpus", "1"]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    said = json.loads(done.stdout)
    found = {entry["id"]: entry for entry in said["figures"]["findings"]}
    assert done.returncode == (0 if said["ok"] else 1)
    assert found["kernel"]["what"].endswith(os.uname().release) and "namespaces" in said["figures"]["drivers"]
    assert found["gpus"]["state"] == gpus.gpus(1).state
