"""On a machine with two GPUs: what the doctor's probes say there, where they are well and where something is broken.

Needs a checkout and a Python with PyTorch, and installs nothing. Each case is one run of ``leonardo.probes`` with the
states that it should find; ``$OUT/probes.json`` has what each found, as said there::

    timeout 120 python3 tests/gpu/probes.py
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
OUT = Path(os.environ.get("OUT", "out")).absolute()
NOBODY = 65534

_NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
_DEADLINE = time.monotonic() + 112.0


@dataclass(frozen=True)
class Case:
    """A run of the probes, and the states that it should find, by the probe's id."""

    name: str
    arguments: tuple[str, ...]
    states: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)
    words: str = ""
    """That the finding ``nccl`` has to have."""
    plain: bool = False


_WELL = {"gpus": "ok", "nccl": "ok"}
CASES = (
    Case("root", ("--gpus", "2"), _WELL, words="2 GPUs reduce"),
    Case("plain user", ("--gpus", "2"), _WELL, words="2 GPUs reduce", plain=True),
    Case(
        "a GPU is hidden",
        ("--gpus", "2", "--alone"),
        {"nccl": "missing"},
        {"CUDA_VISIBLE_DEVICES": "0"},
        words="sees 1 GPUs",
    ),
    Case("more are expected", ("--gpus", "3", "--alone"), dict.fromkeys(_WELL, "missing"), words="sees 2 GPUs"),
    Case(
        "no time", ("--gpus", "2", "--alone", "--seconds", "0.5"), {"nccl": "missing"}, words="no answer within 0.5 s"
    ),
    # the remedy that the finding names: NCCL's own words, in a file
    Case(
        "no interface",
        ("--gpus", "2", "--alone", "--seconds", "30"),
        {"gpus": "ok", "nccl": "missing"},
        {"NCCL_SOCKET_IFNAME": "none0", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{OUT}/nccl.%p"},
    ),
)


def run(case: Case, checkout: Path) -> dict[str, Any]:
    """The case, and whether it found what it should."""
    command = [sys.executable, "-m", "leonardo.probes", *case.arguments]
    if case.plain and os.getuid() == 0:
        command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *command]
    variables = {**os.environ, **_NO_MULTICAST, **case.environment, "PYTHONPATH": str(checkout), "HOME": str(checkout)}
    left, started = max(5.0, _DEADLINE - time.monotonic()), time.monotonic()
    try:
        done = subprocess.run(command, env=variables, cwd=checkout, capture_output=True, text=True, timeout=left)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"case": case.name, "right": False, "error": str(error)[-300:]}
    try:
        said = json.loads(done.stdout)
    except ValueError:
        return {"case": case.name, "right": False, "error": f"exit code {done.returncode}: {done.stderr[-300:]}"}
    found = {entry["id"]: entry for entry in said["figures"]["findings"]}
    right = all(found[name]["state"] == state for name, state in case.states.items())
    right &= case.words in found["nccl"]["what"]
    return {"case": case.name, "right": right, "seconds": round(time.monotonic() - started, 1), "said": said}


def main() -> int:
    """Every case; 0 where each found what it should."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:  # where a plain user can read it
        checkout = Path(folder)
        checkout.chmod(0o755)
        shutil.copytree(PROJECT / "leonardo", checkout / "leonardo", ignore=shutil.ignore_patterns("__pycache__"))
        subprocess.run(["chmod", "-R", "a+rX", str(checkout)], check=True)
        results = []
        for case in CASES:
            results.append(run(case, checkout))
            (OUT / "probes.json").write_text(json.dumps(results, indent=1))
            entry = results[-1]
            findings = entry.get("said", {}).get("figures", {}).get("findings", [])
            print("right" if entry["right"] else "WRONG", case.name, entry.get("seconds"), entry.get("error", ""))
            for finding in findings[:2] if "--alone" in case.arguments else findings:
                print(f"    {finding['id']}: {finding['state']}: {finding['what']}")
            drivers = entry.get("said", {}).get("figures", {}).get("drivers", {})
            for label, driver in drivers.items():
                print(f"    driver {label}: {driver['serves']} {driver['note'][:200]}")
    logs = sorted(OUT.glob("nccl.*"))
    print(f"{len(logs)} files of NCCL")
    for line in [line for log in logs for line in log.read_text(errors="replace").splitlines() if "WARN" in line][:3]:
        print("   ", line[:200])
    return 0 if all(entry["right"] for entry in results) else 1


if __name__ == "__main__":
    sys.exit(main())
