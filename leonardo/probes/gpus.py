"""Probes of a node's GPUs. Needs the standard library alone: PyTorch is asked in a process of its own."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from leonardo.probes.probe import Result, ok
from leonardo.probes.programs import run

_SECONDS = 100.0
"""For processes that import PyTorch, one a GPU, and meet."""

_NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
"""Multicast over NVLink can put the GPUs of a shared host out of service: what only asks does without."""

_REDUCE = """
import json, sys, time, torch, torch.distributed as d, torch.multiprocessing as m
def work(rank, count, backend, meeting):
    device = f"cuda:{rank}" if backend == "nccl" else "cpu"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    d.init_process_group(backend, init_method=f"file://{meeting}", rank=rank, world_size=count)
    tensor = torch.ones(1 << 24, device=device)
    d.all_reduce(tensor)
    assert tensor[0].item() == tensor[-1].item() == count
    rounds, started = 10, time.monotonic()
    for _ in range(rounds):
        d.all_reduce(tensor)
    tensor[0].item()
    seconds = (time.monotonic() - started) / rounds
    if rank == 0:
        print(json.dumps({"count": count, "megabytes": tensor.nbytes / 1e6, "milliseconds": 1000 * seconds}))
    d.destroy_process_group()
if __name__ == "__main__":
    backend, meeting, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    seen = torch.cuda.device_count()
    if backend == "nccl" and seen < count:
        sys.exit(f"PyTorch {torch.__version__} sees {seen} GPUs")
    m.spawn(work, (count, backend, meeting), count)
"""


_DRIVER = 580
"""The branch that CUDA 13 needs, for which upstream's CUDA environment is built."""


def gpus(wanted: int) -> Result:
    """As many as a node should have, and a driver that is new enough for upstream's environment."""
    said = run("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader,nounits")
    found = [line.strip() for line in said.output.splitlines() if line.strip()] if said.well else []
    if not found and not wanted:
        return ok("gpus", "none, and none are expected")
    if len(found) >= wanted:
        model, _, driver = found[0].rpartition(", ")
        words = f"{len(found)}: {model} MiB, driver {driver}"
        branch = driver.partition(".")[0]
        if not branch.isdigit() or int(branch) >= _DRIVER:
            return ok("gpus", words)
        return Result(
            "gpus",
            "degraded",
            words,
            f"upstream's environment is built for CUDA 13, which needs a driver of the {_DRIVER} branch",
            "Another node, or NVIDIA's forward compatibility package in set_up of the site: docs/engines.md",
        )
    in_a_job = "SLURM_JOB_ID" in os.environ
    return Result(
        "gpus",
        "missing",
        f"{len(found)} of {wanted}{'' if said.well else f' ({said.words})'}",
        "upstream's trainer does not start on this node",
        "This job was given no more, or the driver is not well: nvidia-smi says which. Mend gpus and gres of the pool, "
        "or take another node"
        if in_a_job
        else "Run it in a job that asks for GPUs (leonardo doctor --node); in a machine without Slurm, mend the driver",
    )


def nccl(python: Path, count: int, environment: Mapping[str, str] | None = None, seconds: float = _SECONDS) -> Result:
    """Whether ``count`` GPUs of this node reduce a tensor together.

    Args:
        python: of an environment with PyTorch.
        count: of GPUs.
        environment: variables that the site sets for trainers.
        seconds: after which it is ended.
    """
    return reduced(python, "nccl", count, environment or {}, seconds)


def reduced(python: Path, backend: str, count: int, environment: Mapping[str, str], seconds: float) -> Result:
    """As :func:`nccl`, by any backend of ``torch.distributed``; ``gloo`` needs no GPU."""
    if not python.is_file():
        return Result("nccl", "degraded", f"{python} is not there", "it was not tried", "make upstream-env")
    variables = {**os.environ, **environment, **_NO_MULTICAST}
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "reduce.py"
        program.write_text(_REDUCE)
        words = (str(python), "-B", str(program), backend, f"{folder}/meeting", str(count))
        said = run(*words, seconds=seconds, environment=variables)
    lines = [line for line in said.output.splitlines() if line.startswith('{"count"')]  # NCCL may print lines, too
    if said.well and lines:
        seen = "{count} GPUs reduce {megabytes:.0f} MB together in {milliseconds:.2f} ms"
        return ok("nccl", seen.format(**json.loads(lines[0])))
    return Result(
        "nccl",
        "missing",
        f"the GPUs of this node do not reduce a tensor together ({said.words or 'no answer'})",
        "learners cannot meet",
        "Ask again with NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.%p: the files say why",
    )
