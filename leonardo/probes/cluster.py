"""Probes of what a cluster adds: Slurm, the network, node-local space, clocks, Apptainer."""

import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from leonardo.cluster import ApptainerLimits, Cluster, Pool
from leonardo.probes.gpus import gpus, nccl
from leonardo.probes.probe import Probe, Result, ok
from leonardo.probes.programs import run
from leonardo.sandbox.apptainer import find as own_or_found

_GIB = 1 << 30
_APART = 2.0
"""Seconds that two clocks may differ."""

_REACH = """
import ssl, sys, urllib.error, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=5)
except urllib.error.HTTPError:
    pass  # somebody answered
except urllib.error.URLError as error:
    sys.exit(0 if isinstance(error.reason, ssl.SSLError) else str(error.reason))
"""


def apptainer(limits: ApptainerLimits) -> Result:
    """Its version."""
    name = "apptainer"
    program = own_or_found() if limits.command == "apptainer" else shutil.which(limits.command)
    if program is None:
        return Result(
            name,
            "degraded",
            f"{limits.command} is not here",
            "no fallback where a kernel forbids our sandboxes; images of a registry cannot be fetched",
            "Load its module, or make apptainer",
        )
    said = run(str(program), "--version")
    found = re.search(r"\d+\.\d+(\.\d+)?", said.output if said.well else "")
    if found is None:
        what = f"{limits.command} --version says {said.words or repr(said.output)}"
        return Result(name, "degraded", what, "it may not serve", "Load another module, or make apptainer")
    if _numbers(found[0]) < _numbers(limits.least):
        return Result(name, "degraded", found[0], f"older than {limits.least}, which was tried", "Load a newer module")
    return ok(name, found[0])


def scheduler() -> Result:
    """Whether Slurm answers."""
    if shutil.which("sbatch") is None:
        return Result("slurm", "missing", "sbatch is not here", "nothing can be submitted", "Work on a login node")
    said = run("sinfo", "--noheader", "--format=%P")
    if not said.well:
        what = f"sinfo does not answer ({said.words})"
        return Result("slurm", "missing", what, "nothing can be submitted", "Is the controller up?")
    return ok("slurm", f"partitions {', '.join(sorted({word.strip('*') for word in said.output.split()}))}")


def partitions(cluster: Cluster) -> Result:
    """Whether the site's partitions are there."""
    said = run("scontrol", "show", "partition", "--oneliner")
    if not said.well:
        return Result(
            "partitions", "missing", f"scontrol does not answer ({said.words})", "nothing is known of them", ""
        )
    there = set(said.output.split())
    gone = [pool.partition for pool in cluster.pools.values() if f"PartitionName={pool.partition}" not in there]
    if not gone:
        return ok("partitions", "those of the site are there")
    return Result("partitions", "missing", f"no {', '.join(gone)}", "jobs for it are refused", "Mend the site's pools")


def network(expected: bool, host: str = "example.org", port: int = 443) -> Result:
    """Whether the internet is reached, by ``https_proxy`` where that is set, and whether it should be."""
    asked = run(sys.executable, "-c", _REACH, f"https://{host}:{port}/", seconds=10)  # a resolver may hang: in time
    reached = asked.well
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
        f"the site says {least:g}: jobs that ask for more than there is do not start",
        "Free it, or mend tmp_size of the site",
    )


def clock(shared: Path) -> Result:
    """This node's clock against the shared file system's."""
    if "$" in str(shared):
        return Result("clock", "degraded", f"{shared} is not set here", "not compared", "Set the variable")
    place = shared
    try:
        while not place.exists():
            place = place.parent
        with tempfile.NamedTemporaryFile(dir=place) as file:
            apart = abs(time.time() - Path(file.name).stat().st_mtime)
    except OSError as error:
        words = f"{place} cannot be written to ({error.strerror})"
        return Result("clock", "degraded", words, "not compared", "Make it yours, or mend roots of the site")
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


def cluster_probes(
    cluster: Cluster, *, node: Pool | None, python: Path, environment: Mapping[str, str]
) -> Iterator[Probe]:
    """The probes of a site's cluster: of a login node, or of a compute node in a job.

    Args:
        cluster: the site's.
        node: the pool of this compute node; None on a login node.
        python: of upstream's environment.
        environment: of upstream's trainer, beside that of every job.
    """
    yield partial(apptainer, cluster.apptainer)
    yield scheduler
    yield partial(partitions, cluster)
    yield cores
    yield partial(clock, cluster.roots.shared)
    yield partial(network, cluster.network.compute if node else cluster.network.login)
    if node:
        yield partial(scratch, node.tmp, node.tmp_size)
        yield partial(gpus, node.gpus)
        if node.gpus > 1:
            yield partial(nccl, python, node.gpus, {**environment, **cluster.environment})


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text))
