"""From the holder's process to a sandbox's process 1, and to the process that prepares a layer around one."""

import contextlib
import os
import resource
import select
import signal
import socket
from collections.abc import Callable

from leonardo.sandbox import fuseoverlay, layers, linux, mounts, ownfiles, seccomp, selftest, wire
from leonardo.sandbox.server import FULL_BELOW, Server
from leonardo.sandbox.servers import Asker

HOSTNAME = "sandbox"
ISOLATED = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
_COUNTS_PROCESSES_BY_NAMESPACE = linux.kernel_version() >= (5, 14)  # before, RLIMIT_NPROC meant all of a user's


class IdMaps:
    """The ids of this process's user namespace, as maps that give a nested one the same ids."""

    def __init__(self) -> None:
        self.users, self.groups = _identity("uid"), _identity("gid")

    @property
    def single(self) -> bool:
        """Whether there is one id only."""
        return self.users.split() == ["0", "0", "1"]

    def give_to(self, process: int) -> None:
        """Write the maps of a process that was cloned into a new user namespace."""
        for kind, text in (("uid", self.users), ("gid", self.groups)):
            linux.write(f"/proc/{process}/{kind}_map", text)


def _identity(kind: str) -> str:
    """One line an extent, since a nested extent may not span two."""
    lines = [line.split() for line in linux.read(f"/proc/self/{kind}_map").splitlines()]
    return "".join(f"{inside} {inside} {count}\n" for inside, _, count in lines)


def start(plan: mounts.Plan, descriptors: list[int], ids: IdMaps, *, test: bool = False) -> int:
    """Start a sandbox; the process returned ends when it does.

    ``descriptors``: the channel alone for an episode; a job's socket and the channel for a set-up.
    """
    if len(descriptors) == 1 and plan.fuse:
        process = linux.clone(linux.CLONE_NEWNS)
        if not process:
            _run_child(lambda: _serve_files(plan, descriptors[0], ids, test), descriptors[0])
        return process
    if len(descriptors) == 1:
        return _start_sandbox(plan, descriptors[0], ids, _sandbox_with_scratch, test=test)
    process = linux.clone(linux.CLONE_NEWNS)
    if not process:
        _run_child(lambda: _prepare(plan, *descriptors, ids), descriptors[-1])
    return process


def _start_sandbox(
    plan: mounts.Plan, channel: int, ids: IdMaps, build: Callable[[mounts.Plan], None], *, test: bool = False
) -> int:
    go_read, go_write = os.pipe2(os.O_CLOEXEC)
    flags = ISOLATED | (0 if plan.network else linux.CLONE_NEWNET) | (linux.CLONE_NEWUSER if plan.nested else 0)
    process = linux.clone(flags)
    if not process:
        os.close(go_write)
        _run_child(lambda: _become_sandbox(plan, channel, go_read, build, test), channel)
    os.close(go_read)
    try:
        if plan.nested:
            ids.give_to(process)
        os.write(go_write, b"g")
    except OSError:
        os.kill(process, signal.SIGKILL)
        raise
    finally:
        os.close(go_write)
    return process


def wait_for_plan(control_descriptor: int) -> None:
    """Become the sandbox that a message tells of (see nursery.py); end where none comes. Never returns."""
    linux.die_with_parent()
    linux.close_descriptors_except(control_descriptor)
    control = socket.socket(fileno=control_descriptor)
    try:
        if control.recv(1) != b"g":
            raise EOFError
        message = wire.receive(control)
    except EOFError:
        os._exit(0)
    control.close()
    *groups, channel = message.descriptors
    plan = mounts.Plan(**{**message.header, "groups": groups})
    _run_child(lambda: _fill(plan, channel, _sandbox_with_scratch), channel)


def _run_child(body: Callable[[], None], channel: int) -> None:
    """Run ``body`` in a cloned process, which never returns to its parent's code. A failure is told on ``channel``."""
    try:
        body()
    except BaseException as error:  # noqa: BLE001 - the process ends here, whatever it was
        number = error.errno if isinstance(error, OSError) else None
        text = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        try:
            wire.send(socket.socket(fileno=channel), {"error": text, "errno": number})
        finally:
            os._exit(1)
    os._exit(0)


def _sandbox_with_scratch(plan: mounts.Plan) -> None:
    mounts.mount_scratch(plan.disk, plan.layers[0])
    if plan.own:
        ownfiles.copy(plan.layers[0], f"{mounts.SCRATCH}/upper", plan.own)
    mounts.enter_root(plan)


def _become_sandbox(
    plan: mounts.Plan, channel_descriptor: int, go: int, build: Callable[[mounts.Plan], None], test: bool
) -> None:
    linux.die_with_parent()
    if os.read(go, 1) != b"g":
        os._exit(1)
    _fill(plan, channel_descriptor, build, test)


def _fill(plan: mounts.Plan, channel_descriptor: int, build: Callable[[mounts.Plan], None], test: bool = False) -> None:
    builder = _start_builder(plan, channel_descriptor, build)
    process_folder = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    linux.close_descriptors_except(channel_descriptor, process_folder)
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.setsid()
    os.umask(0o002 if plan.network else 0o022)  # a set-up's is what Apptainer gives %post, whatever the caller's
    try:
        os.setgroups([])
    except OSError:
        pass  # a namespace of one id may not
    _limit(plan)
    linux.set_dumpable(False)  # or root in the sandbox could read this process's memory and descriptors
    linux.die_with_parent()
    seccomp.install()
    if plan.pretended_owners:
        seccomp.install(pretending=True)
    channel = socket.socket(fileno=channel_descriptor)
    if test:
        wire.send(channel, {"ready": True, "checks": selftest.check_root()})
        return
    wire.send(channel, {"ready": True})
    Server(channel, plan.environment, process_folder, builder).serve()


def _start_builder(plan: mounts.Plan, channel: int, build: Callable[[mounts.Plan], None]) -> int:
    """Have the root built by a process of its own, whose memory goes when it ends; this one is to stay small.

    Returns once the root is there. The process goes on to put this one into its control groups, for which the kernel
    (version 1) takes ten milliseconds: no command is to be started before it has ended.
    """
    built_read, built_write = os.pipe2(os.O_CLOEXEC)
    builder = linux.clone(0)
    if not builder:
        _run_child(lambda: _build(plan, build, built_write), channel)
    os.close(built_write)
    built = os.read(built_read, 1)
    os.close(built_read)
    if not built:
        code = os.waitstatus_to_exitcode(os.waitpid(builder, 0)[1])
        if code < 0:
            raise OSError(f"the process that builds its root was killed by signal {-code}")
        os._exit(1)  # it has said why
    return builder


def _build(plan: mounts.Plan, build: Callable[[mounts.Plan], None], built: int) -> None:
    linux.die_with_parent()
    linux.set_hostname(HOSTNAME)
    if not plan.network:
        linux.bring_up_loopback()
    build(plan)
    linux.write("/proc/1/oom_score_adj", "1000")  # if the machine runs out of memory all the same, sandboxes go first
    os.write(built, b"b")
    for group in plan.groups:
        with contextlib.suppress(OSError):  # before kernel 5.17 this process's own rights count: then without a group
            os.write(group, b"1")


def _limit(plan: mounts.Plan) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # the caller's, which nothing below may exceed
    open_files = plan.open_files if most == resource.RLIM_INFINITY else min(plan.open_files, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    if _COUNTS_PROCESSES_BY_NAMESPACE:
        resource.setrlimit(resource.RLIMIT_NPROC, (plan.processes, plan.processes))


# ---- an overlay by FUSE


def _serve_files(plan: mounts.Plan, channel: int, ids: IdMaps, test: bool) -> None:
    """Hold a sandbox's FUSE overlay outside of the sandbox; ends as the sandbox does, or when its files are gone.

    SIGTERM ends all three; this process is the last, so that whoever waits for it knows that nothing is left.
    """
    linux.die_with_parent()
    signal.set_wakeup_fd(-1)
    mounts.mount_scratch(plan.disk, plan.layers[0])
    if plan.own:
        ownfiles.copy(plan.layers[0], f"{mounts.SCRATCH}/upper", plan.own)
    server = fuseoverlay.start(plan.layers, f"{mounts.SCRATCH}/root")
    asker = Asker(f"{mounts.SCRATCH}/root")
    process = _start_sandbox(plan, channel, ids, mounts.enter_root, test=test)
    os.close(channel)

    def own_end() -> int | None:
        ending = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ending is None:
            return None
        return ending.si_status if ending.si_code == os.CLD_EXITED else -ending.si_status

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        code = own_end()
        if code is None:
            code = fuseoverlay.GONE
        os.kill(process, signal.SIGKILL)
        wait_for((process,), fuseoverlay.HEAD_START)  # its end may wait for its files, whose failure it is not to see
        for child in (server, asker.process, process):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if code < 0:
            os.kill(os.getpid(), -code)  # as the sandbox ended
        os._exit(code)

    signal.signal(signal.SIGTERM, end)
    work = None
    while own_end() is None and not fuseoverlay.is_stopped(server):
        if asker.answers in wait_for((process, server), 0.5, asker.answers):
            try:
                asker.hear()
            except EOFError:  # killed: it is nothing to the sandbox
                os.waitpid(asker.process, 0)
                os.close(asker.answers)
                asker = Asker(f"{mounts.SCRATCH}/root")
        # one that is at a long copy answers late, but works
        before, work = work, fuseoverlay.work_of(server) if asker.is_overdue else None
        if work is not None and work == before:
            break
    end()


def wait_for(processes: tuple[int, ...], seconds: float, *others: int) -> list[int]:
    """Until one of some children has ended or one of some descriptors is ready (which are returned), or for so long."""
    handles = [os.pidfd_open(process) for process in processes]
    try:
        return select.select([*handles, *others], [], [], seconds)[0]
    finally:
        for handle in handles:
            os.close(handle)


# ---- preparing a layer


def _prepare(plan: mounts.Plan, job_descriptor: int, channel: int, ids: IdMaps) -> None:
    """Hold the writable layer of a set-up outside of its sandbox, so that the host's tar can pack it at the end."""
    linux.die_with_parent()
    job = socket.socket(fileno=job_descriptor)
    mounts.mount_scratch(plan.disk, plan.layers[0])
    targets = {"/proc": True, "/dev": True, "/sys": True}
    targets |= {target: False for target in plan.files if not target.startswith("/dev/")}
    targets |= {target: os.path.isdir(source) for target, source in plan.binds.items()}
    show = fuseoverlay.show_layers if plan.fuse else mounts.show_layers
    plan = plan.changed(layers=mounts.make_mount_points(plan.layers, targets, show))
    if plan.fuse:
        fuseoverlay.start(plan.layers, f"{mounts.SCRATCH}/root")
    process = _start_sandbox(plan, channel, ids, mounts.enter_root)
    os.close(channel)
    poll = select.poll()
    poll.register(job, select.POLLIN)
    full = False
    while True:
        full = full or _is_full()
        if not poll.poll(100):
            continue
        try:
            message = wire.receive(job)
        except (EOFError, OSError):
            return
        if message.header["do"] == "end":
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            wire.send(job, {"full": full or _is_full()})
        elif message.header["do"] == "capture":
            archive = message.descriptors[0]
            if plan.fuse:
                linux.unmount(f"{mounts.SCRATCH}/root")
                fuseoverlay.make_neutral(f"{mounts.SCRATCH}/upper")
            mounts.hide_accounts()
            tool, complaints = start_tool(layers.pack_command(f"{mounts.SCRATCH}/upper"), {1: archive})
            code = os.waitstatus_to_exitcode(os.waitpid(tool, 0)[1])
            wire.send(job, {"exit_code": code, "complaints": complaints_of(complaints)})


def _is_full() -> bool:
    room = os.statvfs(mounts.SCRATCH)
    return room.f_bfree * room.f_bsize < FULL_BELOW or room.f_ffree < 16


# ---- the host's tools, run as root of the holder's namespace


def start_tool(command: list[str], streams: dict[int, int]) -> tuple[int, int]:
    """Start a program of the host with ``streams`` (its descriptor -> ours); (process, file of its complaints)."""
    complaints = os.memfd_create("complaints")
    streams = {2: complaints, **streams}
    process = os.posix_spawnp(
        command[0],
        command,
        layers.TOOL_ENVIRONMENT,
        file_actions=[(os.POSIX_SPAWN_DUP2, ours, its) for its, ours in streams.items()],
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGCHLD],
    )
    return process, complaints


def complaints_of(descriptor: int) -> str:
    """What a tool wrote to its standard error; closes the file."""
    with open(descriptor, "rb") as stream:
        stream.seek(0)
        return stream.read(1 << 16).decode(errors="replace").strip()
