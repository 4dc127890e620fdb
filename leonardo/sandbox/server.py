"""Process 1 of a sandbox: runs commands and moves files for the controller, over one socket.

Nothing is needed from the image: this Python was loaded before the root was changed, so no import may happen after
:meth:`Server.serve` begins (hence the imports at the top that look unused). One thread, one poll loop; every request
brings a socket of its own for its answer, so that commands run side by side.
"""

import contextlib
import errno
import os
import select
import signal
import socket
import time
from collections.abc import Callable

from leonardo.sandbox import serverfiles, wire
from leonardo.sandbox.listing import listing
from leonardo.sandbox.output import Output
from leonardo.sandbox.terminal import Terminal

READ_SIZE = 1 << 16
LONGEST_ARGUMENT = 120_000
"""execve(2) takes no single argument of 128 KiB or more; longer commands go through a file in memory."""

FULL_BELOW = 256 << 10  # bytes free in a writable layer: less at any time means that the disk was full

_RESET_SIGNALS = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGINT]
_LOWEST_DESCRIPTOR = 10


def exit_code_of(status: int) -> int:
    """A shell's exit code of a wait status: signals as 128 + n."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


class Command:
    """A command under way; ``outputs`` by the descriptors that they are read from, in ``order``."""

    def __init__(
        self,
        process: int,
        reply: socket.socket,
        outputs: dict[int, Output],
        order: list[int],
        timeout: float,
        grace: float,
    ) -> None:
        self.process, self.reply, self.outputs, self.order = process, reply, outputs, order
        self.begun = time.monotonic()
        self.deadline, self.grace, self.signals_sent = self.begun + timeout, grace, 0


def take_signals() -> None:
    """What :meth:`Server.serve` needs; once, for the processes that are cloned from this one, too."""
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)  # process 1 of a namespace is deaf to what it does not handle


class Server:
    """Serves ``channel`` until its other end closes.

    Args:
        channel: the socket to the controller.
        environment: what commands see.
        process_folder: an open /proc; held because commands may unmount the visible one.
        builder: a child that no command is to be started before the end of.
    """

    def __init__(self, channel: socket.socket, environment: dict[str, str], process_folder: int, builder: int) -> None:
        self._channel = channel
        self._builder = builder
        self._environment = environment
        self._process_folder = process_folder
        self._commands: dict[int, Command] = {}
        self._terminals: dict[int, Terminal] = {}
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._poll = select.poll()
        self._ended = False

    # ---- the loop

    def serve(self) -> None:
        """Answer requests until the channel closes."""
        _reserve_descriptors()
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        self._watch(wake_read, self._on_child)
        self._watch(self._channel.fileno(), self._on_request)
        while not self._ended:
            for descriptor, _ in self._poll.poll(self._milliseconds_to_deadline()):
                handler = self._handlers.get(descriptor)  # an earlier handler of this round may have dropped it
                if handler:
                    handler(descriptor)
            self._enforce_deadlines()

    def _watch(self, descriptor: int, handler: Callable[[int], None], events: int = select.POLLIN) -> None:
        self._handlers[descriptor] = handler
        self._poll.register(descriptor, events)

    def _forget(self, descriptor: int) -> None:
        if self._handlers.pop(descriptor, None):
            self._poll.unregister(descriptor)

    def _milliseconds_to_deadline(self) -> float | None:
        if not self._commands:
            return None
        return max(0.0, min(command.deadline for command in self._commands.values()) - time.monotonic()) * 1000 + 1

    # ---- requests

    def _on_request(self, _: int) -> None:
        try:
            message = wire.receive(self._channel)
        except (EOFError, OSError):
            self._ended = True
            return
        # told what it is, Python need not ask
        reply = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=message.descriptors[0])
        header = message.header
        try:
            match header["do"]:
                case "run":
                    self._start(header, message.blob, reply)
                case "write":
                    serverfiles.write(header["path"], message.blob)
                    _answer(reply, {})
                case "prepare":
                    serverfiles.prepare(header["folders"], header["links"], header["sizes"], message.blob)
                    _answer(reply, {})
                case "read":
                    _answer(reply, {}, serverfiles.read(header["path"]))
                case "memory":
                    _answer(reply, {"bytes": self._memory()})
                case "listing":
                    _answer(reply, {}, listing())
                case "extract":
                    serverfiles.extract(header["root"], header["entries"], message.blob)
                    _answer(reply, {})
                case other:
                    raise ValueError(f"unknown request {other}")
        except Exception as error:  # noqa: BLE001 - whatever one request does wrong must not end the sandbox
            _answer(reply, {"error": type(error).__name__, "message": _in_words(error)})

    def _memory(self) -> int:
        """This process's proportional set size in bytes; nobody else may ask the kernel for it."""
        descriptor = os.open("1/smaps_rollup", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._process_folder)
        try:
            lines = os.read(descriptor, 4096).splitlines()
        finally:
            os.close(descriptor)
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(b"Pss:"))

    # ---- commands

    def _start(self, header: wire.Header, given: bytes, reply: socket.socket) -> None:
        if self._builder:
            os.waitpid(self._builder, 0)
            self._builder = 0
        argv, script = self._argv(header)
        if argv is None:
            _answer(reply, {"exit_code": 127, "timed_out": False, "sizes": [0, -1]}, b"bash: not found in the image\n")
            return
        closing = [] if script is None else [script]
        reads: list[int] = []
        try:
            if "terminal" in header:
                terminal = Terminal(*header["terminal"], given)
                self._terminals[terminal.descriptor] = terminal
                reads = [terminal.descriptor]
                # a session's leader that opens a terminal has it
                actions: list[tuple] = [(os.POSIX_SPAWN_OPEN, 0, terminal.path, os.O_RDWR, 0)]
                actions += [(os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
            else:
                pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(1 if header.get("merge") else 2)]
                reads, writes = [pipe[0] for pipe in pipes], [pipe[1] for pipe in pipes]
                closing += writes
                actions = [(os.POSIX_SPAWN_DUP2, writes[0], 1), (os.POSIX_SPAWN_DUP2, writes[-1], 2)]
                if given:
                    closing.append(_file_of(given, "input"))
                    actions.append((os.POSIX_SPAWN_DUP2, closing[-1], 0))
            if script is not None:
                actions.append((os.POSIX_SPAWN_DUP2, script, 3))
            process = os.posix_spawn(
                argv[0],
                argv,
                {**self._environment, **header.get("environment", {})},
                file_actions=actions,
                setsid=True,
                setsigmask=[],
                setsigdef=_RESET_SIGNALS,
            )
        except OSError as error:
            for descriptor in reads:
                self._terminals.pop(descriptor, None)
                os.close(descriptor)
            text = f"{argv[0]}: cannot be started: {error.strerror}\n".encode()
            _answer(reply, {"exit_code": 126, "timed_out": False, "sizes": [0, -1]}, text)
            return
        finally:
            for descriptor in closing:
                os.close(descriptor)
        outputs = {}
        for descriptor in reads:
            os.set_blocking(descriptor, False)
            outputs[descriptor] = Output(header["output"])
            if descriptor in self._terminals:
                self._watch(descriptor, self._on_terminal, select.POLLIN | select.POLLOUT)
            else:
                self._watch(descriptor, self._on_output)
        self._commands[process] = Command(process, reply, outputs, reads, header["timeout"], header["grace"])
        self._watch(reply.fileno(), self._on_abandoned)

    def _argv(self, header: wire.Header) -> tuple[list[str] | None, int | None]:
        """The program to start, and a file in memory that it reads as descriptor 3 (or None)."""
        if "argv" in header:
            return header["argv"], None
        bash = _find_program("bash", self._environment.get("PATH", ""))
        if bash is None:
            return None, None
        command = header["command"]
        data = os.fsencode(command)
        if len(data) < LONGEST_ARGUMENT:
            return [bash, "-c", command], None
        return [bash, "-c", "source /dev/fd/3"], _file_of(data, "command")

    def _on_terminal(self, descriptor: int) -> None:
        terminal = self._terminals[descriptor]
        terminal.type()
        if not terminal.hungry:
            self._poll.modify(descriptor, select.POLLIN)
        self._on_output(descriptor)

    def _on_output(self, descriptor: int) -> None:
        for command in self._commands.values():
            if descriptor in command.outputs:
                self._take(descriptor, command.outputs[descriptor])
                return
        self._take(descriptor, None)

    def _take(self, descriptor: int, output: Output | None) -> bool:
        """Read what is there once. False when nothing was, or nothing will ever be."""
        try:
            data = os.read(descriptor, READ_SIZE)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:  # what a terminal says when nobody has its near side open any more
                raise
            data = b""
        if data and output:
            output.add(data)
        if not data:
            self._forget(descriptor)
            self._terminals.pop(descriptor, None)
            os.close(descriptor)
        return bool(data)

    def _on_child(self, wake: int) -> None:
        try:
            os.read(wake, 4096)
        except BlockingIOError:
            pass
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not process:
                return
            if process == self._builder:
                self._builder = 0
            command = self._commands.pop(process, None)
            if command:
                self._finish(command, exit_code_of(status))

    def _finish(self, command: Command, exit_code: int) -> None:
        """Answer as soon as the command itself has ended: background processes may hold its pipes for ever.

        Such pipes go on being emptied (see :meth:`_on_output`), so that a service never dies of writing to them.
        """
        timed_out = command.signals_sent > 0
        if timed_out:
            self._signal_session(command.process, signal.SIGKILL)
        for descriptor in command.order:
            for _ in range(32):  # a pipe holds 16 times READ_SIZE at most; a background writer could go on for ever
                if descriptor not in self._handlers or not self._take(descriptor, command.outputs[descriptor]):
                    break
        self._forget(command.reply.fileno())
        texts = [command.outputs[descriptor].value() for descriptor in command.order]
        header = {
            "exit_code": 124 if timed_out else exit_code,
            "timed_out": timed_out,
            "sizes": [len(text) for text in texts],
            "disk_full": exit_code != 0 and _disk_is_full(),
            "seconds": time.monotonic() - command.begun,
        }
        _answer(command.reply, header, b"".join(texts))

    def _on_abandoned(self, descriptor: int) -> None:
        """The caller closed its end (nothing is ever sent there): nobody wants the command any more."""
        self._forget(descriptor)
        for command in self._commands.values():
            if command.reply.fileno() == descriptor:
                self._signal_session(command.process, signal.SIGKILL)

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        for command in list(self._commands.values()):
            if now >= command.deadline:
                self._signal_session(command.process, signal.SIGKILL if command.signals_sent else signal.SIGTERM)
                command.signals_sent += 1
                command.deadline = now + (command.grace if command.signals_sent == 1 else 1.0)

    def _signal_session(self, session: int, number: signal.Signals) -> None:
        """Signal every process of a command's session; until no new one turns up, since they may be forking."""
        seen: set[int] = set()
        for _ in range(10):
            found = {process for process, its in self._sessions() if its == session} - seen
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
            seen |= found
            if not found:
                return

    def _sessions(self) -> list[tuple[int, int]]:
        """(process, session) of everything in the sandbox."""
        pairs = []
        for name in os.listdir(self._process_folder):
            if not name.isdigit():
                continue
            try:
                descriptor = os.open(f"{name}/stat", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._process_folder)
            except OSError:
                continue
            try:
                fields = os.read(descriptor, 1024).rpartition(b")")[2].split()
            except OSError:
                continue
            finally:
                os.close(descriptor)
            pairs.append((int(name), int(fields[3])))
        return pairs


def _reserve_descriptors() -> None:
    """Take the numbers that a command may be given, so that no pipe gets one of them."""
    while os.dup(0) < _LOWEST_DESCRIPTOR - 1:
        pass


def _file_of(data: bytes, name: str) -> int:
    """A file in memory to read ``data`` from."""
    descriptor = os.memfd_create(name)
    with open(descriptor, "wb", closefd=False) as stream:
        stream.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _disk_is_full() -> bool:
    room = os.statvfs("/")
    return room.f_bfree * room.f_bsize < FULL_BELOW or room.f_ffree < 16


def _find_program(name: str, search_path: str) -> str | None:
    for folder in search_path.split(":"):
        candidate = f"{folder or '.'}/{name}"
        if os.access(candidate, os.X_OK):
            return candidate
    return None


def _answer(reply: socket.socket, header: wire.Header, blob: bytes = b"") -> None:
    try:
        wire.send(reply, header, blob)
    except OSError:
        pass  # a caller that has gone needs no answer
    reply.close()


def _in_words(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
