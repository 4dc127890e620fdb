"""One verification, as an episode does it: the folders it needs, the tests put there at the end, the verdict read."""

import io
import shlex
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from leonardo.errors import InfrastructureError
from leonardo.sandbox.backend import SandboxBackend, SandboxOOMError
from leonardo.tasks.task import Task

VERIFIER_TIMEOUT = 600.0
_FOLDERS = ("/workspace", "/output", "/logs/verifier", "/root")
_VERDICT_FOLDER = "/logs/verifier"


class Status(StrEnum):
    """What a verifier said."""

    PASSED = "passed"
    FAILED = "failed"
    BROKEN = "broken"
    """It could not run: nothing was said about the task."""


@dataclass(frozen=True)
class Verdict:
    """A verifier's word and the end of its output."""

    status: Status
    output: str


def prepare(backend: SandboxBackend, task: Task, files: Mapping[str, str] | None = None) -> None:
    """Make a fresh sandbox what an episode of ``task`` begins with: its folders, ``/app``, ``files`` and seeds.

    One request does it all, and starts no process. Raises InfrastructureError where that fails.
    """
    try:
        backend.prepare(_FOLDERS, files, {"/app": "/workspace"})
    except RuntimeError as error:
        reason = _end(str(error))
        raise InfrastructureError(
            f"task {task.id}: a fresh sandbox cannot be prepared ({reason})", "The image needs a writable root"
        ) from error
    if task.seeds:
        backend.put_archive("/workspace", archive_of(task.seeds))


def run_script(backend: SandboxBackend, script: str, timeout: float) -> tuple[int, str]:
    """Run a script by bash in the folder that the agent starts in. Returns its exit code and the end of its output."""
    result = backend.run_command(f"cd /app\n{script}", timeout=timeout)
    return result.exit_code, _end(result.stdout + result.stderr)


def verify(backend: SandboxBackend, task: Task, timeout: float = VERIFIER_TIMEOUT) -> Verdict:
    """Put the tests there, run them, and read what they say; services that were started before still run.

    Where what ran before leaves no room for that (a full disk, a pipe in the verdict's place), the verifier is broken:
    nothing that is done in a sandbox may end what runs outside of it.
    """
    try:
        return _verify(backend, task, timeout)
    except SandboxOOMError:
        raise
    except RuntimeError as error:
        return Verdict(Status.BROKEN, str(error))


def _verify(backend: SandboxBackend, task: Task, timeout: float) -> Verdict:
    backend.run_command(f"rm -rf /tests {_VERDICT_FOLDER} && mkdir -p /tests {_VERDICT_FOLDER}")
    backend.put_archive("/tests", archive_of(task.tests))
    result = backend.run_command(f"bash {shlex.quote('/tests/test.sh')}", timeout=timeout)
    output = _end(result.stdout + result.stderr)
    passed = _read(backend, "reward.txt") == "1"
    if result.exit_code == 124:
        return Verdict(Status.BROKEN, f"the verifier did not end in {timeout:.0f} s")
    word = _read(backend, "status.txt")
    if not word:  # the converted form's own test.sh writes a reward only
        return Verdict(Status.PASSED if passed else Status.FAILED, output)
    return Verdict(Status.PASSED if passed else Status(word) if word in list(Status) else Status.BROKEN, output)


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """A tar of ``files`` (path -> content), owned by root, everything executable."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in sorted(files.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def _read(backend: SandboxBackend, name: str) -> str:
    try:
        content = backend.read_file(f"{_VERDICT_FOLDER}/{name}")
    except (FileNotFoundError, IsADirectoryError):
        return ""
    return (content if isinstance(content, str) else content.decode(errors="replace")).strip()


def _end(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-15:])[-2000:]
