"""The sandbox interface: the methods, result and exceptions of upstream's ``SandboxBackend``
(``open_instruct/environments/backends.py``), so that a driver of ours can be handed to upstream unchanged."""

import shlex
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass
class ExecutionResult:
    """What a command left: its output, decoded as UTF-8 with replacement, and its exit code (signals as 128 + n)."""

    stdout: str
    stderr: str
    exit_code: int


class SandboxOOMError(RuntimeError):
    """The sandbox ran out of memory and was killed; the episode cannot go on. The agent's doing, not the machine's."""


class SandboxLimitError(SandboxOOMError):
    """The sandbox went over another of its limits and was ended; a kind of the above since upstream knows only that."""


class SandboxBackend(ABC):
    """A live, writable copy of a prepared state. Made unstarted; :meth:`start` after :meth:`close` resets it.

    Every method raises :class:`leonardo.errors.InfrastructureError` where the machine failed, and ``RuntimeError``
    when the sandbox is not started.
    """

    @abstractmethod
    def start(self) -> None:
        """Reset to the prepared state (ends a running sandbox first)."""

    @abstractmethod
    def run_command(self, command: str, timeout: float | None = None) -> ExecutionResult:
        """Run ``bash -c command`` as uid 0 in the default working directory.

        A command that exceeds ``timeout`` seconds gets TERM, ten seconds later KILL, exit code 124, its partial output,
        and a first stderr line that says so. Background processes it started live on until :meth:`close`.
        """

    @abstractmethod
    def write_file(self, path: str, content: str | bytes) -> None:
        """Write a file, making its parent folders."""

    @abstractmethod
    def read_file(self, path: str, binary: bool = False) -> str | bytes:
        """Read a file. Raises FileNotFoundError, IsADirectoryError."""

    @abstractmethod
    def put_archive(self, root: str, tar_bytes: bytes) -> None:
        """Extract a tar archive below ``root``; nothing is written outside of ``root``."""

    def prepare(
        self,
        folders: Sequence[str] = (),
        files: Mapping[str, str | bytes] | None = None,
        links: Mapping[str, str] | None = None,
    ) -> None:
        """Several steps of a reset as one: make ``folders``, write ``files`` (path -> content, mode 755), and make each
        of ``links`` (path -> target) whose path is not a folder. Raises RuntimeError where one fails."""
        steps = [f"mkdir -p {shlex.join(folders)}"] if folders else []
        steps += [
            f"{{ [ -d {path} ] || ln -sfn {target} {path}; }}"
            for path, target in ((shlex.quote(path), shlex.quote(target)) for path, target in (links or {}).items())
        ]
        for path, content in (files or {}).items():
            self.write_file(path, content)
            steps.append(f"chmod 755 {shlex.quote(path)}")
        result = self.run_command(" && ".join(steps)) if steps else ExecutionResult("", "", 0)
        if result.exit_code != 0:
            raise RuntimeError(result.stderr.strip() or f"exit code {result.exit_code}")

    @abstractmethod
    def close(self) -> None:
        """End every process of the sandbox and leave nothing behind. May be called twice."""
