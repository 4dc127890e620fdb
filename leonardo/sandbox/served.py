"""The controller's side of a sandbox: upstream's interface over the channel to its process 1."""

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from leonardo.errors import FailureClass, InfrastructureError
from leonardo.sandbox import wire
from leonardo.sandbox.archives import read_archive
from leonardo.sandbox.backend import ExecutionResult, SandboxBackend, SandboxLimitError, SandboxOOMError
from leonardo.sandbox.driver import Limits
from leonardo.sandbox.timings import Timings

GRACE = 10.0
"""Seconds between TERM and KILL of a command that exceeds its time."""
PATIENCE = 30.0
"""Seconds beyond a command's own limits after which a sandbox that does not answer is given up."""
FILE_PATIENCE = 120.0
LISTING_PATIENCE = 600.0

DEFAULT_ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LOGNAME": "root",
    "SHELL": "/bin/bash",
    "TERM": "xterm",
    "LANG": "C.UTF-8",
}
"""What every command sees besides (and below) the stack's own environment; nothing comes from the host."""


Answer = TypeVar("Answer")


class SandboxGoneError(Exception):
    """The other end of the channel closed: the sandbox has ended."""


class Life(Protocol):
    """A sandbox that a driver started."""

    channel: socket.socket

    @property
    def sound(self) -> bool:
        """Whether what serves its files still runs: without it commands fail in ways that look like their own."""

    def end(self, *, gone: bool = False) -> str:
        """End it, wait until nothing of it is left, and say why it had ended if it had (``gone``)."""

    def refusals(self) -> set[str]:
        """Which of ``memory`` and ``processes`` the kernel has refused it since this was last asked, where it tells."""


@dataclass(frozen=True)
class CommandOutcome:
    """A finished command.

    Attributes:
        outputs: stdout and stderr, or both as one where they were merged or the command had a terminal.
        exit_code: signals as 128 + n; 124 when it ran too long.
        timed_out: whether it did.
        disk_full: whether it failed and the writable layer is full.
        seconds: how long it ran.
        ended_by: what made it fail, as far as is known: ``""``, ``timeout``, ``disk`` or ``processes``.
    """

    outputs: tuple[bytes, ...]
    exit_code: int
    timed_out: bool
    disk_full: bool = False
    seconds: float = 0.0
    ended_by: str = ""


@dataclass
class CommandResult(ExecutionResult):
    """Upstream's result, and what made the command fail (see :attr:`CommandOutcome.ended_by`)."""

    ended_by: str = ""


class Channel:
    """Requests to a sandbox's process 1; each has a socket of its own for the answer, so threads need not queue."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        connection.settimeout(FILE_PATIENCE)

    def call(self, header: dict[str, Any], blob: bytes = b"", *, patience: float = FILE_PATIENCE) -> wire.Message:
        """One request and its answer. TimeoutError after ``patience`` seconds."""
        ours, theirs = socket.socketpair()
        with ours:
            ours.settimeout(patience)
            try:
                with theirs, self._lock:
                    wire.send(self._connection, header, blob, [theirs.fileno()])
                return wire.receive(ours)
            except TimeoutError:
                raise
            except (EOFError, OSError) as error:
                raise SandboxGoneError(str(error)) from error

    def run(
        self,
        request: dict[str, Any],
        *,
        timeout: float,
        output: int,
        environment: Mapping[str, str] | None = None,
        stdin: bytes = b"",
    ) -> CommandOutcome:
        """Run a command (``command`` for bash, or ``argv``; ``merge`` for one output; ``terminal``: rows, columns)."""
        header = {
            "do": "run",
            "timeout": timeout,
            "grace": GRACE,
            "output": output,
            "environment": dict(environment or {}),
            **request,
        }
        answer = self.call(header, stdin, patience=timeout + GRACE + PATIENCE)
        if "error" in answer.header:
            raise RuntimeError(f"the command could not be run: {answer.header['message']}")
        outputs, start = [], 0
        for size in answer.header["sizes"]:
            end = len(answer.blob) if size < 0 else start + size
            outputs.append(answer.blob[start:end])
            start = end
        known = {name: answer.header[name] for name in ("disk_full", "seconds") if name in answer.header}
        return CommandOutcome(tuple(outputs), answer.header["exit_code"], answer.header["timed_out"], **known)


class ServedBackend(SandboxBackend):
    """A sandbox whose process 1 is :class:`leonardo.sandbox.server.Server`.

    Args:
        open_life: starts a sandbox.
        timeout: a command's default, in seconds.
        timings: where durations go.
    """

    def __init__(self, open_life: Callable[[], Life], timeout: float, limits: Limits, timings: Timings) -> None:
        self._open_life = open_life
        self._timeout = timeout
        self._limits = limits
        self._timings = timings
        self._lock = threading.Lock()
        self._life: Life | None = None
        self._channel: Channel | None = None
        self._failure: Exception | None = None

    def start(self) -> None:
        self.close()
        with self._timings.measure("start"):
            self._life = self._open_life()
            self._channel = Channel(self._life.channel)

    def run_command(self, command: str, timeout: float | None = None) -> ExecutionResult:
        limit = self._timeout if timeout is None else timeout
        outcome = self.execute(command, timeout=limit)
        stdout, stderr = (text.decode("utf-8", "replace") for text in outcome.outputs)
        if outcome.timed_out:
            stderr = f"Command timed out after {limit:g}s.\n{stderr}"
        return CommandResult(stdout, stderr, outcome.exit_code, outcome.ended_by)

    def execute(
        self,
        command: str,
        *,
        timeout: float | None = None,
        stdin: bytes = b"",
        terminal: tuple[int, int] | None = None,
    ) -> CommandOutcome:
        """Run ``bash -c command`` like :meth:`run_command`, with bytes in and out.

        Args:
            command: for bash.
            timeout: in seconds.
            stdin: what the command reads; nothing, if not given.
            terminal: rows and columns of a terminal that is the command's input and output; ``stdin`` is then typed,
                and the one output has what is typed, as well, and lines that end with carriage returns.
        """
        limit = self._timeout if timeout is None else timeout
        if "\0" in command:
            return CommandOutcome((b"", b"the command holds a NUL byte\n"), 126, False)
        request: dict[str, Any] = {"command": command}
        if terminal:
            request["terminal"] = list(terminal)
        with self._timings.measure("command"):
            outcome = self._guarded(
                lambda channel: channel.run(request, timeout=limit, output=self._limits.output, stdin=stdin)
            )
        return self._explained(outcome)

    def _explained(self, outcome: CommandOutcome) -> CommandOutcome:
        """What made a command fail. One that the kernel killed for the sandbox's memory ends the sandbox."""
        life, channel = self._life, self._channel
        refusals = life.refusals() if life else set()
        if "memory" in refusals and channel:
            raise self._bury(channel, "memory")
        if outcome.exit_code == 0:
            return outcome
        if outcome.timed_out:
            ended_by = "timeout"
        elif outcome.disk_full:
            ended_by = "disk"
        elif "processes" in refusals or _cannot_fork(outcome.outputs[-1]):
            ended_by = "processes"
        else:
            ended_by = ""
        return replace(outcome, ended_by=ended_by)

    def write_file(self, path: str, content: str | bytes) -> None:
        data = content.encode() if isinstance(content, str) else content
        with self._timings.measure("file"):
            answer = self._guarded(lambda channel: channel.call({"do": "write", "path": path}, data))
        if "error" in answer.header:
            raise RuntimeError(f"write_file failed for {path!r}: {answer.header['message']}")

    def prepare(
        self,
        folders: Sequence[str] = (),
        files: Mapping[str, str | bytes] | None = None,
        links: Mapping[str, str] | None = None,
    ) -> None:
        contents = {
            path: content.encode() if isinstance(content, str) else content for path, content in (files or {}).items()
        }
        header = {
            "do": "prepare",
            "folders": list(folders),
            "links": dict(links or {}),
            "sizes": {path: len(content) for path, content in contents.items()},
        }
        with self._timings.measure("prepare"):
            answer = self._guarded(lambda channel: channel.call(header, b"".join(contents.values())))
        if "error" in answer.header:
            raise RuntimeError(answer.header["message"])

    def read_file(self, path: str, binary: bool = False) -> str | bytes:
        with self._timings.measure("file"):
            answer = self._guarded(lambda channel: channel.call({"do": "read", "path": path}))
        match answer.header.get("error"):
            case None:
                return answer.blob if binary else answer.blob.decode("utf-8", "replace")
            case "FileNotFoundError" | "NotADirectoryError":
                raise FileNotFoundError(f"no file {path!r} in the sandbox")
            case "IsADirectoryError":
                raise IsADirectoryError(f"{path!r} is a folder")
            case _:
                raise RuntimeError(f"read_file failed for {path!r}: {answer.header['message']}")

    def put_archive(self, root: str, tar_bytes: bytes) -> None:
        def request(channel: Channel) -> wire.Message:
            entries, contents = read_archive(tar_bytes)
            return channel.call({"do": "extract", "root": root, "entries": entries}, contents)

        with self._timings.measure("file"):
            try:
                answer = self._guarded(request)
            except ValueError as error:
                raise RuntimeError(f"put_archive failed at {root!r}: {error}") from error
        if "error" in answer.header:
            raise RuntimeError(f"put_archive failed at {root!r}: {answer.header['message']}")

    def listing(self) -> str:
        """The whole file tree as text, see :mod:`leonardo.sandbox.listing`."""
        answer = self._guarded(lambda channel: channel.call({"do": "listing"}, patience=LISTING_PATIENCE))
        if "error" in answer.header:
            raise RuntimeError(f"the file tree could not be listed: {answer.header['message']}")
        return answer.blob.decode()

    def memory(self) -> int:
        """Bytes that the sandbox itself costs while nothing runs in it (proportional set size of its process 1)."""
        return self._guarded(lambda channel: channel.call({"do": "memory"})).header["bytes"]

    def close(self) -> None:
        with self._lock:
            life, self._life, self._channel, self._failure = self._life, None, None, None
        if life:
            with self._timings.measure("destroy"):
                life.end()

    def _guarded(self, request: Callable[[Channel], Answer]) -> Answer:
        """Send a request; a sandbox that has gone is reported as what ended it, then and from then on."""
        channel = self._channel
        if self._failure:
            raise self._failure
        if channel is None:
            raise RuntimeError("the sandbox is not started")
        try:
            answer = request(channel)
            life = self._life
            if life is not None and not life.sound:
                raise SandboxGoneError("what serves its files ended")
            return answer
        except SandboxGoneError as error:
            raise self._bury(channel, "") from error
        except TimeoutError as error:
            raise self._bury(channel, "its process 1 does not answer") from error

    def _bury(self, channel: Channel, cause: str) -> Exception:
        with self._lock:
            if channel is not self._channel:
                return InfrastructureError("the sandbox was closed during a request")
            life, self._life = self._life, None
            if life is not None:
                reason = cause or life.end(gone=True)
                if cause:
                    life.end()
                self._failure = failure_of(reason, self._limits)
            return self._failure or InfrastructureError("the sandbox has ended")


def _cannot_fork(complaints: bytes) -> bool:
    """Whether a shell or interpreter says that it could not start a process: where no group counts, who else knows."""
    return b"Resource temporarily unavailable" in complaints and b"fork" in complaints


def failure_of(reason: str, limits: Limits) -> Exception:
    """What to raise for a sandbox that ended by itself."""
    if reason == "memory":
        return SandboxOOMError(f"the sandbox used more than its {limits.memory >> 20} MiB of memory and was ended")
    if reason == "processes":
        return SandboxLimitError(f"the sandbox had far more than its {limits.processes} processes and was ended")
    return InfrastructureError(
        f"the sandbox ended: {reason}", "the attempt is excluded and can be retried", FailureClass.RUNTIME
    )
