"""Probes of the kernel and of what an unprivileged user may do."""

import os
import platform
import re
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

from leonardo.probes.probe import Probe, Result, ok
from leonardo.probes.programs import run
from leonardo.sandbox import cgroups as groups
from leonardo.sandbox import identities

_GIB = 1 << 30
_TRIED = (5, 11)
"""Overlays in user namespaces are in the kernel from here on; RHEL 8's 4.18 has them by backport."""

_FILES = 65_536
_SHARED_MEMORY = 8.0

_OVERLAY = """
set -e
mount -t tmpfs tmpfs "$1"
cd "$1"
mkdir lower upper work merged
echo seen > lower/file
mount -t overlay -o userxattr,lowerdir=lower,upperdir=upper,workdir=work overlay merged
grep -q seen merged/file && rm merged/file && [ ! -e merged/file ]
"""


def kernel() -> Result:
    """Linux, and how old."""
    release = platform.release()
    numbers = tuple(int(number) for number in re.findall(r"\d+", release)[:2])
    if numbers >= _TRIED:
        return ok("kernel", f"Linux {release}")
    return Result(
        "kernel",
        "degraded",
        f"Linux {release}",
        "overlays in user namespaces may be missing; the probe overlay says whether they are",
        "Nothing, where the probe overlay is well",
    )


def user_namespaces() -> Result:
    """Whether this user can make one."""
    said = run("unshare", "--user", "--map-root-user", "true")
    if said.well:
        return ok("user-namespaces", "can be made")
    limit = _read("/proc/sys/user/max_user_namespaces")
    why = "max_user_namespaces is 0" if limit == "0" else said.words
    return Result(
        "user-namespaces",
        "missing",
        f"cannot be made ({why})",
        "no driver serves: Apptainer's need one, too, and a set-uid Apptainer was never tried",
        "Ask for user.max_user_namespaces > 0, and kernel.apparmor_restrict_unprivileged_userns = 0 on Ubuntu",
    )


def overlay() -> Result:
    """Whether an overlay can be mounted in a user namespace, with deletions."""
    with tempfile.TemporaryDirectory() as folder:
        said = run("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", _OVERLAY, "sh", folder)
    if said.well:
        return ok("overlay", "mounts in a user namespace, and deletes")
    return Result(
        "overlay",
        "degraded",
        f"does not mount in a user namespace ({said.words})",
        "one driver is left, the slowest: namespaces-fuse, with a process of fuse-overlayfs for each sandbox",
        "Install fuse-overlayfs, with mode 666 on /dev/fuse; or use a newer kernel",
    )


def fuse() -> Result:
    """Whether /dev/fuse can be opened, and by any user: sandboxes of root are not root on the host."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
        mode = Path("/dev/fuse").stat().st_mode
        why = "" if mode & 0o6 == 0o6 else f"is for some users only, mode {mode & 0o777:o}"
    except OSError as error:
        why = f"cannot be opened ({error.strerror})"
    if not why:
        return ok("fuse", "/dev/fuse opens")
    return Result(
        "fuse",
        "degraded",
        f"/dev/fuse {why}",
        "Apptainer cannot mount an image as a plain user, and there is no fuse-overlayfs to fall back on",
        "Ask for mode 666 on /dev/fuse; unpacked bases do without",
    )


def many_ids() -> Result:
    """Whether a user namespace may hold many user ids."""
    try:
        found = identities.full()
        why = found.degraded or (_mapped(found) if found.programs else "")
    except identities.NoRangeError as error:
        why = str(error)
    if not why:
        count, first = found.users[-1], found.users[-2]
        return ok("many-ids", f"{count} subordinate ids from {first}")
    return Result(
        "many-ids",
        "degraded",
        why,
        "sandboxes have one user or few: chown and su fail in them, and apt needs its sandbox off",
        "Ask for 65536 ids in /etc/subuid and /etc/subgid, and for the package uidmap",
    )


def cgroups() -> Result:
    """Whether this user may make a control group."""
    if groups.find() is not None:
        return ok("cgroups", "can be made")
    return Result(
        "cgroups",
        "degraded",
        "none can be made",
        "memory and processes of a sandbox are bounded by rlimits and the watchdog alone",
        "Nothing; on a cluster the job's own group bounds all",
    )


def loop_devices() -> Result:
    """Whether there are loop devices; only a set-uid Apptainer uses them."""
    if Path("/dev/loop-control").exists():
        return ok("loop-devices", "are there")
    return Result(
        "loop-devices",
        "degraded",
        "/dev/loop-control is not there",
        "a set-uid Apptainer cannot mount images",
        "Nothing: images are mounted by squashfuse, or unpacked",
    )


def shared_memory() -> Result:
    """The size of /dev/shm, which Ray's objects lie in."""
    try:
        size = shutil.disk_usage("/dev/shm").free / _GIB
    except OSError as error:
        return Result("shared-memory", "missing", f"no /dev/shm ({error.strerror})", "Ray does not start", "Mount one")
    if size >= _SHARED_MEMORY:
        return ok("shared-memory", f"{size:.0f} GiB free in /dev/shm")
    return Result(
        "shared-memory",
        "degraded",
        f"{size:.1f} GiB free in /dev/shm",
        "Ray's objects go to the disk; more than one trainer does not fit",
        f"Mount it with {_SHARED_MEMORY:g} GiB or more; lower object-store-memory of the site's ray",
    )


def limits() -> Result:
    """Open files and processes."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, processes = resource.getrlimit(resource.RLIMIT_NPROC)
    enough = [
        limit in (resource.RLIM_INFINITY, -1) or limit >= least for limit, least in ((files, _FILES), (processes, 4096))
    ]
    what = f"{_limit(files)} open files, {_limit(processes)} processes"
    if all(enough):
        return ok("limits", what)
    return Result(
        "limits",
        "degraded",
        what,
        "Ray keeps a file open for each worker and object; hundreds of sandboxes have thousands of processes",
        f"Ask for nofile {_FILES} and nproc 4096 or more",
    )


def locale() -> Result:
    """Whether text is UTF-8."""
    import locale as module

    name = module.getpreferredencoding(False)
    if name.replace("-", "").lower() == "utf8":
        return ok("locale", name)
    return Result("locale", "degraded", name, "logs with other letters stop a program", "export LC_ALL=C.UTF-8")


def git() -> Result:
    """Whether there is git; a job does without."""
    said = run("git", "--version")
    if said.well:
        return ok("git", said.output)
    return Result(
        "git",
        "degraded",
        f"does not run ({said.words})",
        "no upstream is fetched and no patch put on it, and records do not say of which commit this project is",
        "Install it, or load its module; a compute node does without",
    )


PROBES: tuple[Probe, ...] = (
    kernel,
    user_namespaces,
    overlay,
    fuse,
    many_ids,
    cgroups,
    loop_devices,
    shared_memory,
    limits,
    locale,
    git,
)


def _limit(value: int) -> str:
    return "unlimited" if value in (resource.RLIM_INFINITY, -1) else str(value)


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _mapped(wanted: identities.Identities) -> str:
    """Map the ids in a namespace; "" where that went well, else why not."""
    command = ("unshare", "--user", "cat")
    try:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as one:
            assert one.stdin is not None and one.stdout is not None
            one.stdin.write(b"x")
            one.stdin.flush()
            if not one.stdout.read(1):  # it is cat, and in the namespace, when it answers
                return "no user namespace can be made"
            for program, ids in (("newuidmap", wanted.users), ("newgidmap", wanted.groups)):
                said = run(program, str(one.pid), *map(str, ids))
                if not said.well:
                    return f"{program} fails ({said.words})"
    except OSError:
        return "no user namespace can be made"
    return ""
