"""Probes of what a cluster adds: Slurm, GPUs, the network, node-local space, clocks, Apptainer."""

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from leonardo.cluster import ApptainerLimits, Cluster, Pool
from leonardo.probes.probe import Probe, Result, ok

_GIB = 1 << 30
_APART = 2.0
"""Seconds that two clocks may differ."""

_REDUCE = """
import sys, torch, torch.distributed as d, torch.multiprocessing as m
def work(rank, count):
    d.init_process_group("nccl", init_method=f"file://{sys.argv[1]}", rank=rank, world_size=count)
    one = torch.ones(1 << 20, device=rank)
    d.all_reduce(one)
    assert one[0].item() == count
    d.destroy_process_group()
if __name__ == "__main__":
    m.spawn(work, (torch.cuda.device_count(),), torch.cuda.device_count())
"""


def apptainer(limits: ApptainerLimits) -> Result:
    """Its version."""
    name = "apptainer"
    if shutil.which(limits.command) is None:
        return Result(
            name,
            "degraded",
            f"{limits.command} is not here",
            "no fallback where a kernel forbids our sandboxes; images of a registry cannot be fetched",
            "Load its module, or make apptainer",
        )
    said = _said(limits.command, "--version")
    found = re.search(r"\d+\.\d+(\.\d+)?", said or "")
    if found is None:
        return Result(name, "degraded", f"{limits.command} --version says {said!r}", "see above", "Install another")
    if _numbers(found[0]) < _numbers(limits.least):
        return Result(name, "degraded", found[0], f"older than {limits.least}, which was tried", "Load a newer module")
    return ok(name, found[0])


def scheduler() -> Result:
    """Whether Slurm answers."""
    if shutil.which("sbatch") is None:
        return Result("slurm", "missing", "sbatch is not here", "nothing can be submitted", "Work on a login node")
    said = _said("sinfo", "--noheader", "--format=%P")
    if said is None:
        return Result("slurm", "missing", "sinfo does not answer", "nothing can be submitted", "Is the controller up?")
    return ok("slurm", f"partitions {', '.join(sorted({word.strip('*') for word in said.split()}))}")


def partitions(cluster: Cluster) -> Result:
    """Whether the site's partitions are there."""
    said = set((_said("scontrol", "show", "partition", "--oneliner") or "").split())
    gone = [pool.partition for pool in cluster.pools.values() if f"PartitionName={pool.partition}" not in said]
    if not gone:
        return ok("partitions", "those of the site are there")
    return Result("partitions", "missing", f"no {', '.join(gone)}", "jobs for it are refused", "Mend the site's pools")


def gpus(pool: Pool) -> Result:
    """As many as a node of the pool should have."""
    said = _said("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    found = [line for line in (said or "").splitlines() if line.strip()]
    if len(found) >= pool.gpus:
        return ok("gpus", f"{len(found)}: {found[0].strip()} MiB" if found else "none, and none are expected")
    return Result(
        "gpus",
        "missing",
        f"{len(found)} of {pool.gpus}",
        "upstream's trainer does not start on this node",
        "Run it in a job that asks for GPUs (--node); another node; the driver",
    )


def nccl(python: Path) -> Result:
    """Whether the GPUs of this node reduce a tensor together."""
    if not python.is_file():
        return Result("nccl", "degraded", f"{python} is not there", "it was not tried", "make upstream-env")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "reduce.py"
        program.write_text(_REDUCE)
        said = _said(str(python), str(program), str(Path(folder) / "meeting"), seconds=120)
    if said is not None:
        return ok("nccl", "all GPUs of the node reduce a tensor together")
    return Result(
        "nccl",
        "missing",
        "the GPUs of this node do not reduce a tensor",
        "learners cannot meet",
        "NCCL_DEBUG=INFO says why",
    )


def network(expected: bool, host: str = "example.org", port: int = 443) -> Result:
    """Whether the internet is reached, and whether it should be."""
    try:
        socket.create_connection((host, port), timeout=3).close()
        reached = True
    except OSError:
        reached = False
    words = "is reached" if reached else "is not reached"
    if reached == expected:
        return ok("network", f"the internet {words}, as the site says")
    if reached:
        return Result(
            "network",
            "degraded",
            f"the internet {words}, and the site says it is not",
            "a run that needs it by mistake is not noticed here",
            "Mend network of the site",
        )
    return Result(
        "network",
        "degraded",
        f"the internet {words}, and the site says it is",
        "bundles cannot be made and images cannot be fetched here",
        "Look at http_proxy and https_proxy, or carry a bundle",
    )


def scratch(folder: Path, least: float) -> Result:
    """Node-local space."""
    try:
        with tempfile.TemporaryDirectory(dir=folder):
            free = shutil.disk_usage(folder).free / _GIB
    except OSError as error:
        return Result(
            "scratch", "missing", f"{folder} ({error.strerror})", "no job can start here", "Mend tmp of the site"
        )
    if free >= least:
        return ok("scratch", f"{free:.0f} GiB free in {folder}")
    return Result(
        "scratch",
        "degraded",
        f"{free:.1f} GiB free in {folder}",
        f"the site says {least:g}",
        "Free it, or mend the site",
    )


def clock(shared: Path) -> Result:
    """This node's clock against the shared file system's."""
    place = shared
    while not place.exists():
        place = place.parent
    try:
        with tempfile.NamedTemporaryFile(dir=place) as file:
            apart = abs(time.time() - Path(file.name).stat().st_mtime)
    except OSError as error:
        return Result("clock", "degraded", f"{place} cannot be written ({error.strerror})", "not compared", "")
    if apart <= _APART:
        return ok("clock", f"{apart:.1f} s from {place}'s")
    return Result(
        "clock",
        "degraded",
        f"{apart:.0f} s from {place}'s",
        "times in records and munge's tickets are off",
        "Tell the site",
    )


def cores() -> Result:
    """The cores that this process may use, and those there are."""
    own, there = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    return ok("cores", f"{own} of {there} may be used")


def cluster_probes(cluster: Cluster, *, node: bool, python: Path) -> Iterator[Probe]:
    """The probes of a site's cluster: of a login node, or of a compute node in a job."""
    yield partial(apptainer, cluster.apptainer)
    yield scheduler
    yield partial(partitions, cluster)
    yield cores
    yield partial(clock, cluster.roots.shared)
    yield partial(network, cluster.network.compute if node else cluster.network.login)
    if node:
        pool = next(iter(cluster.pools.values()))
        yield partial(scratch, pool.tmp, pool.tmp_size)
        yield partial(gpus, pool)
        if pool.gpus > 1:
            yield partial(nccl, python)


def _said(*command: str, seconds: float = 20) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))
