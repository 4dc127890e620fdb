"""The guard: the helper process that the driver starts. It makes the namespaces of the holder, maps their ids, and sees
to it that the holder ends when the driver's process does, whichever way.

It is a fresh interpreter (never a fork of the caller, which may hold gigabytes and threads) with an empty environment,
and stays in the caller's user namespace, with the caller's rights.
"""

import json
import os
import select
import signal
import socket
import sys

from leonardo.sandbox import linux, mounts, sandboxprocess, slots, wire
from leonardo.sandbox.holder import hold
from leonardo.sandbox.servers import HUNG, Servers, say

TITLE = "sandbox"
"""What processes that serve sandboxes are called; a sandbox sees its process 1 under this name."""


def main() -> None:
    """Arguments: the control socket, the lifeline (a pipe that closes with the driver), settings as JSON.

    Never returns.
    """
    control_descriptor, lifeline = int(sys.argv[1]), int(sys.argv[2])
    settings = json.loads(sys.argv[3])
    linux.set_title(TITLE)
    servers = Servers(settings["servers"])
    control = socket.socket(fileno=control_descriptor)
    try:
        holder, opener = _start_holder(control, settings, servers)
    except OSError as error:
        wire.send(control, {"error": str(error), "errno": error.errno})
        os._exit(1)
    control.close()
    _watch(holder, opener, lifeline, settings["driver_process"], servers)


def _start_holder(control: socket.socket, settings: wire.Header, servers: Servers) -> tuple[int, socket.socket | None]:
    mine, its = socket.socketpair() if settings["opens"] else (None, None)
    go_read, go_write = os.pipe2(os.O_CLOEXEC)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # until it is waited for
    # a container's /proc does not show this process and its children: keep the one that does
    processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    namespaces = [
        (kind, _namespace(processes, settings["join"]["process"], kind)) for kind in settings["join"]["kinds"]
    ]
    for kind, descriptor in namespaces:
        _enter(kind, descriptor)
    if settings["image"]:
        mounts.keep_image()
    own_users = linux.CLONE_NEWUSER if settings["maps"] else 0
    process = linux.clone(own_users | linux.CLONE_NEWNS | linux.CLONE_NEWPID)
    if not process:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.close(go_write)
        if os.read(go_read, 1) == b"g":
            os.close(go_read)
            hold(control, its, settings["image"])
        os._exit(1)
    os.close(go_read)
    try:
        _map_ids(processes, process, settings)
        os.write(go_write, b"g")
        if settings["image"]:
            servers.ask_about(mounts.IMAGE, _namespace(processes, process, "mnt"))
        if mine is not None:
            # to open layers for it, with this process's own rights (see slots.py)
            _enter("mnt", _namespace(processes, process, "mnt"))
    except OSError:
        os.kill(process, signal.SIGKILL)
        raise
    finally:
        os.close(go_write)
    return process, mine


def _map_ids(processes: int, process: int, settings: wire.Header) -> None:
    """``maps``: kind (uid, gid) -> numbers in threes, as in uid_map. ``programs``: by newuidmap and newgidmap."""
    for kind, numbers in settings["maps"].items():
        if settings["programs"]:
            command = [f"new{kind}map", str(process), *map(str, numbers)]
            tool, complaints = sandboxprocess.start_tool(command, {})
            code = os.waitstatus_to_exitcode(os.waitpid(tool, 0)[1])
            said = sandboxprocess.complaints_of(complaints)
            if code:
                raise OSError(f"{command[0]}: {said or f'exit code {code}'}")
            continue
        if kind == "gid" and settings["single"]:
            _write(processes, f"{process}/setgroups", "deny")
        lines = [" ".join(map(str, numbers[start : start + 3])) for start in range(0, len(numbers), 3)]
        _write(processes, f"{process}/{kind}_map", "\n".join(lines) + "\n")


def _write(folder: int, path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.write(descriptor, text.encode())  # in one piece, as the kernel wants it
    finally:
        os.close(descriptor)


def _namespace(processes: int, process: int, kind: str) -> int:
    return os.open(f"{process}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=processes)


def _enter(kind: str, descriptor: int) -> None:
    """Join a namespace (``user``, ``pid``, ``mnt``)."""
    flag = {"user": linux.CLONE_NEWUSER, "pid": linux.CLONE_NEWPID, "mnt": linux.CLONE_NEWNS}[kind]
    linux.join_namespace(descriptor, flag)
    os.close(descriptor)


def _watch(holder: int, opener: socket.socket | None, lifeline: int, driver_process: int, servers: Servers) -> None:
    """Until the driver or the holder ends. A parent-death signal would not do: it follows a thread, not a process."""
    wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    poll = select.poll()
    ends = {lifeline}
    try:
        ends.add(os.pidfd_open(driver_process))  # a process that the driver forked may hold the lifeline open
    except OSError:
        pass  # an old kernel, or it has gone already: the lifeline tells
    for descriptor in (wake_read, *ends, *([opener] if opener else [])):
        poll.register(descriptor, select.POLLIN)
    servers.register(poll)
    while True:
        ready = dict(poll.poll(servers.patience))
        if wake_read in ready:
            os.read(wake_read, 4096)  # newuidmap's end also woke us
            process, status = os.waitpid(holder, os.WNOHANG)
            if process:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)
        complaint = servers.complaint(ready)
        if complaint or ends & ready.keys():
            os.kill(holder, signal.SIGKILL)
            servers.end()  # the holder's end may wait for them
            os.waitpid(holder, 0)
            if complaint:
                say(complaint)
            os._exit(HUNG if complaint else 0)
        if opener and opener.fileno() in ready:
            try:
                slots.serve_opener(opener)
            except (EOFError, OSError):
                poll.unregister(opener)
                opener = None
