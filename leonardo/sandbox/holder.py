"""The holder: process 1 of a pid namespace, root of a user namespace that a driver's sandboxes and layers live in.

It binds layers once, makes and ends sandboxes, and runs the tools that unpack, capture and remove layers. It has one
thread and a poll loop. Requests come over one socket; each brings descriptors of its own, the last of which is where
the answer goes. When the holder ends, however it ends, the kernel ends everything in its pid namespace.
"""

import contextlib
import gc
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Callable

from leonardo.sandbox import fuseoverlay, layers, linux, mounts, sandboxprocess, seccomp, selftest, watchdog, wire
from leonardo.sandbox.nursery import Nursery, Spare
from leonardo.sandbox.server import take_signals
from leonardo.sandbox.slots import Slots

_ERRORS_KEPT = 2000  # characters of a tool's complaints


class Sandbox:
    """A sandbox's process as the holder knows it; ``reason`` says why it ended, once it has."""

    def __init__(
        self, process: int, bounds: watchdog.Bounds, keys: list[str], ending: signal.Signals = signal.SIGKILL
    ) -> None:
        self.process, self.bounds, self.keys, self.ending = process, bounds, keys, ending
        self.reason, self.ended = "", False
        self.waiting: list[socket.socket] = []


class Tool:
    """A program under way on a layer."""

    def __init__(self, reply: socket.socket, complaints: int, slot: str) -> None:
        self.reply, self.complaints, self.slot = reply, complaints, slot


class Holder:
    """Serves ``control`` until it closes.

    Args:
        control: requests from the driver.
        slots: where layers are bound.
        ids: the namespace's user and group ids.
    """

    def __init__(self, control: socket.socket, slots: Slots, ids: sandboxprocess.IdMaps) -> None:
        self._control = control
        self._slots = slots
        self._ids = ids
        self._sandboxes: dict[str, Sandbox] = {}
        self._tools: dict[int, Tool] = {}
        self._nursery = Nursery(ids)
        self._spare: Spare | None = None
        self._lacks_spare = False
        self._operations: dict[str, Callable[[wire.Header, list[int]], None]] = {
            "create": self._create,
            "destroy": self._destroy,
            "unpack": self._unpack,
            "remove": self._remove,
            "test": self._test,
        }

    def serve(self) -> None:
        """Answer requests until the driver goes."""
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        next_look = 0.0
        while True:
            if self._lacks_spare and not poll.poll(0):
                self._make_spare()
            ready = dict(poll.poll(_milliseconds_until(next_look) if self._sandboxes else None))
            if wake_read in ready:
                os.read(wake_read, 4096)
                self._reap()
            if self._control.fileno() in ready:
                try:
                    message = wire.receive(self._control)
                except (EOFError, OSError):
                    return
                self._handle(message)
            if self._sandboxes and time.monotonic() >= next_look:
                begun = time.thread_time()
                look = self._enforce_bounds()
                next_look = time.monotonic() + look.pause(time.thread_time() - begun)

    def _handle(self, message: wire.Message) -> None:
        try:
            self._operations[message.header["do"]](message.header, message.descriptors)
        except Exception as error:  # noqa: BLE001 - one bad request must not end every sandbox
            text = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            reply = socket.socket(fileno=message.descriptors.pop())
            _answer(reply, {"error": text, "errno": getattr(error, "errno", None)})
            for descriptor in message.descriptors:
                os.close(descriptor)

    # ---- sandboxes

    def _create(self, header: wire.Header, descriptors: list[int]) -> None:
        """Descriptors: [its groups], [a job's socket, if it prepares a layer], the sandbox's channel."""
        own = descriptors[header["groups"] :]
        keys: list[str] = []

        def take(layer: dict[str, str]) -> str:
            place = self._slots.take(layer["path"], layer["key"])
            keys.append(layer["key"])
            return place

        try:
            folders = [take(layer) for layer in header["layers"]]
            binds = {target: take(layer) for target, layer in header["binds"].items()}
            groups = descriptors[: header["groups"]]
            plan = mounts.Plan(**{**header["plan"], "layers": folders, "binds": binds, "groups": groups})
            process = self._start(plan, own)
        except BaseException:
            for key in keys:
                self._slots.give_back(key)
            raise
        ending = signal.SIGTERM if plan.fuse and len(own) == 1 else signal.SIGKILL
        self._sandboxes[header["id"]] = Sandbox(process, _bounds(header), keys, ending)
        for descriptor in descriptors:
            os.close(descriptor)

    def _make_spare(self) -> None:
        """In a quiet moment, begin with the next sandbox."""
        self._lacks_spare = False
        with contextlib.suppress(OSError):  # then the next one is made when it is asked for
            self._spare = self._new_spare(nested=True)

    def _new_spare(self, *, nested: bool) -> Spare:
        try:
            return self._nursery.spare(nested=nested, slots=self._slots.made)
        except (ConnectionError, TimeoutError):
            self._nursery.end()
            self._nursery = Nursery(self._ids)
            return self._nursery.spare(nested=nested, slots=self._slots.made)

    def _start(self, plan: mounts.Plan, descriptors: list[int]) -> int:
        """The process of a sandbox; most of the time that it takes goes into its namespaces, which a spare has."""
        if len(descriptors) > 1 or plan.network or plan.fuse:
            return sandboxprocess.start(plan, descriptors, self._ids)
        spare, self._spare, self._lacks_spare = self._spare, None, plan.nested
        if spare and (spare.slots, spare.nested) == (self._slots.made, plan.nested):
            with contextlib.suppress(OSError):  # it has ended
                spare.become(plan, descriptors[0])
                return spare.process
        if spare:
            spare.end()
        spare = self._new_spare(nested=plan.nested)
        spare.become(plan, descriptors[0])
        return spare.process

    def _test(self, header: wire.Header, descriptors: list[int]) -> None:
        """A sandbox on a layer made here that runs the self-test instead of serving."""
        layer = f"{mounts.STAGE}/self-test"
        if not os.path.isdir(layer):
            os.mkdir(layer, 0o755)
            selftest.make_layer(layer)
        plan = mounts.Plan(**{**header["plan"], "layers": [layer]})
        process = sandboxprocess.start(plan, descriptors[header["groups"] :], self._ids, test=True)
        self._sandboxes[header["id"]] = Sandbox(process, _bounds(header), [])
        for descriptor in descriptors:
            os.close(descriptor)

    def _destroy(self, header: wire.Header, descriptors: list[int]) -> None:
        sandbox = self._sandboxes.get(header["id"])
        reply = socket.socket(fileno=descriptors[0])
        if sandbox is None:
            _answer(reply, {"reason": "it never started"})
            return
        sandbox.waiting.append(reply)
        if sandbox.ended:
            self._bury(header["id"])
        else:
            # one that is ending by itself is not overtaken: its reason would be lost
            if not header.get("gone"):
                sandbox.reason = sandbox.reason or "destroyed"
            # one that a process of ours holds is seen to by that
            if sandbox.ending is signal.SIGKILL or not header.get("gone"):
                os.kill(sandbox.process, sandbox.ending)

    def _bury(self, identifier: str) -> None:
        sandbox = self._sandboxes.pop(identifier)
        for key in sandbox.keys:
            self._slots.give_back(key)
        for reply in sandbox.waiting:
            _answer(reply, {"reason": sandbox.reason})

    def _enforce_bounds(self) -> watchdog.Look:
        alive = {sandbox.process: sandbox for sandbox in self._sandboxes.values() if not sandbox.ended}
        look = watchdog.look({process: sandbox.bounds for process, sandbox in alive.items()})
        for process, reason in look.over.items():
            alive[process].reason = reason
            os.kill(process, signal.SIGKILL)
        return look

    def _reap(self) -> None:
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not process:
                return
            if process in self._tools:
                self._finish_tool(self._tools.pop(process), status)
                continue
            if self._spare and self._spare.process == process:
                self._spare.end()
                self._spare = None
            for identifier, sandbox in list(self._sandboxes.items()):
                if sandbox.process == process:
                    sandbox.ended = True
                    sandbox.reason = sandbox.reason or _ending(status)
                    if sandbox.waiting:
                        self._bury(identifier)

    # ---- layers

    def _unpack(self, header: wire.Header, descriptors: list[int]) -> None:
        """Descriptors: the archive, the reply."""
        archive, reply = descriptors
        slot = self._slots.take(header["path"], header["key"])
        start = os.pread(archive, 8, 0)
        command = layers.unpack_command(slot, start, keep_owners=not self._ids.single)
        self._run_tool(command, reply, header["key"], {0: archive})

    def _remove(self, header: wire.Header, descriptors: list[int]) -> None:
        slot = self._slots.take(header["path"], header["key"])
        self._run_tool(layers.remove_command(slot), descriptors[0], header["key"], {})

    def _run_tool(self, command: list[str], reply: int, key: str, streams: dict[int, int]) -> None:
        process, complaints = sandboxprocess.start_tool(command, streams)
        for descriptor in streams.values():
            os.close(descriptor)
        self._tools[process] = Tool(socket.socket(fileno=reply), complaints, key)

    def _finish_tool(self, tool: Tool, status: int) -> None:
        text = sandboxprocess.complaints_of(tool.complaints)
        self._slots.give_back(tool.slot, forget=True)
        _answer(tool.reply, {"exit_code": os.waitstatus_to_exitcode(status), "complaints": text[:_ERRORS_KEPT]})


def _bounds(header: wire.Header) -> watchdog.Bounds:
    return watchdog.Bounds(header["memory"], header["plan"]["processes"])


def _milliseconds_until(moment: float) -> float:
    return max(0.0, moment - time.monotonic()) * 1000 + 1


def _ending(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code == fuseoverlay.GONE:
        return "fuse-overlayfs, which serves its files, ended or hung"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"


def _answer(reply: socket.socket, header: wire.Header) -> None:
    with reply:
        try:
            wire.send(reply, header)
        except OSError:
            pass  # a caller that has gone needs no answer


def hold(control: socket.socket, opener: socket.socket | None, image: bool) -> None:
    """Become the holder: this process is already process 1 of its namespaces, with its ids mapped. Never returns.

    ``image``: the root is a container's, which is to be a layer; the host's files are at :data:`mounts.HOST`.
    """
    try:
        linux.die_with_parent()
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        linux.set_dumpable(True)  # the change of user forbade it, and with it the writing of the sandboxes' id maps
        linux.die_with_parent()
        linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
        if image:
            mounts.return_to_host()
        else:
            mounts.mount_stage("")
        for folder in (mounts.SCRATCH, mounts.LAYERS):
            os.mkdir(folder, 0o755)
        os.umask(0o022)
        os.chdir("/")
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        take_signals()
        seccomp.prepare()  # made once: sandboxes inherit it
        gc.disable()  # sandboxes share these pages; a collection would write to them
        wire.send(control, {"ready": True})
    except OSError as error:
        wire.send(control, {"error": str(error), "errno": error.errno})
        os._exit(1)
    Holder(control, Slots(opener), sandboxprocess.IdMaps()).serve()
    os._exit(0)
