"""A root file system from the host's own package archive: mmdebstrap, as root or with subordinate ids."""

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from leonardo.assets.failures import without_hosts
from leonardo.assets.packages import host_archive, host_release, source_lines
from leonardo.errors import FailureClass, InfrastructureError
from leonardo.site import BootstrapSubstitute

_TIMEOUT = 1200
_PATIENCE = 5.0  # seconds that it has for its clean-up
# Nothing of the host stays in the archive: not its mirror, not its resolver, not its name.
_CLEAN_UP = """
: > "$1/etc/resolv.conf"
echo localhost > "$1/etc/hostname"
printf '127.0.0.1\\tlocalhost\\n::1\\tlocalhost ip6-localhost ip6-loopback\\n' > "$1/etc/hosts"
echo '# set-ups are lent the sources of the host; there is no network otherwise' > "$1/etc/apt/sources.list"
rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/etc/dpkg/dpkg.cfg.d/99mmdebstrap
""".strip().replace("\n", "; ")


def choose_release(suite: str) -> str:
    """``suite`` where the host's apt knows it, else the host's own release.

    Raises:
        InfrastructureError: the host has no package archive that a root file system could be made from.
    """
    for release in (suite, host_release()):
        if release and host_archive(release):
            return release
    raise InfrastructureError(
        f"No root file system can be made here: the host's apt knows neither {suite} nor a release of its own",
        "On a host without apt install Apptainer and let it reach the registry, or name an archive in the site file",
        FailureClass.MIRROR,
    )


def bootstrap(substitute: BootstrapSubstitute, release: str, archive: Path) -> None:
    """Make the root file system and write it to ``archive``, a plain tar, the same for the same state of the mirror."""
    with tempfile.TemporaryDirectory(prefix="leonardo-mmdebstrap-") as folder:
        command = [
            _mmdebstrap(Path(folder)),
            "--quiet",
            f"--variant={substitute.variant}",
            f"--mode={'root' if os.geteuid() == 0 else 'unshare'}",
            "--format=tar",
            "--dpkgopt=force-unsafe-io",
            f"--customize-hook={_CLEAN_UP}",
        ]
        if substitute.include:
            command.append(f"--include={','.join(substitute.include)}")
        command += [release, str(archive), *source_lines(host_archive(release))]
        # a fixed time stands in for the files that are made rather than unpacked
        environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000", "LC_ALL": "C.UTF-8"}
        try:
            exit_code, complaints = _run(command, environment)
        except subprocess.TimeoutExpired as error:
            raise InfrastructureError(
                f"mmdebstrap did not finish in {_TIMEOUT} s", "Try again when the mirror is faster", FailureClass.MIRROR
            ) from error
    if exit_code != 0:
        full = "No space left" in complaints
        lines = [line for line in complaints.splitlines() if line.startswith("E:")] or complaints.splitlines()[-1:]
        raise InfrastructureError(
            f"mmdebstrap {release} failed ({without_hosts(' '.join(lines))[:300] or f'exit code {exit_code}'})",
            "Free some space, or name another folder: LEONARDO_CACHE and TMPDIR"
            if full
            else "Check that apt-get update works here; as a plain user also that /etc/subuid has a range for you",
            FailureClass.SPACE if full else FailureClass.MIRROR,
        )


def _run(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Exit code and complaints of mmdebstrap, in a session of its own: when it fails it sends its process group a
    hang-up. Where it is not waited for to the end, it is asked to end, so that it removes what it has made."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            _, complaints = process.communicate(timeout=_TIMEOUT)
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.communicate(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, complaints


def _mmdebstrap(folder: Path) -> str:
    """mmdebstrap of the host, or one unpacked from its package into ``folder``: it is a script and needs no root."""
    if found := shutil.which("mmdebstrap"):
        return found
    state = folder / "apt"
    for name in ("lists/partial", "cache/archives/partial"):
        (state / name).mkdir(parents=True)
    options = ["-o", f"Dir::State::Lists={state}/lists", "-o", f"Dir::Cache={state}/cache", "-o", "Debug::NoLocking=1"]
    if os.geteuid() == 0:
        options += ["-o", "APT::Sandbox::User=root"]
    try:
        for step in (["apt-get", *options, "update"], ["apt-get", *options, "download", "mmdebstrap"]):
            subprocess.run(step, cwd=folder, check=True, capture_output=True, timeout=300)
        package = next(folder.glob("mmdebstrap_*.deb"))
        subprocess.run(
            ["dpkg-deb", "-x", package.name, "root"], cwd=folder, check=True, capture_output=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError, StopIteration) as error:
        raise InfrastructureError(
            "mmdebstrap is missing and could not be fetched",
            "Install it: apt-get install mmdebstrap",
            FailureClass.MIRROR,
        ) from error
    return str(folder / "root" / "usr" / "bin" / "mmdebstrap")
