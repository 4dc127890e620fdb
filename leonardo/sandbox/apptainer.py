"""The driver ``apptainer``: one ``apptainer exec`` an episode makes the user namespace and shows the layers; the rest
is the same holder and the same process 1 as in the driver ``namespaces``, which enter that container.

It serves where the kernel or a security module lets Apptainer make user namespaces but not us. Untested: the setuid
flavour, where there is no user namespace to enter.
"""

import contextlib
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from leonardo.errors import FailureClass, InfrastructureError
from leonardo.sandbox import identities
from leonardo.sandbox.client import HolderClient, Join, LayerReference, layer_reference
from leonardo.sandbox.driver import LayerStack, Limits
from leonardo.sandbox.identities import Identities
from leonardo.sandbox.leases import Lease, Note
from leonardo.sandbox.mounts import HOST, Plan
from leonardo.sandbox.namespaces import NamespacesDriver
from leonardo.sandbox.served import Life

PREFIX = Path(__file__).resolve().parents[2] / ".tools" / "apptainer"
"""Where ``tools/install-apptainer.sh`` puts Apptainer when it has no privilege."""

START_PATIENCE = 60.0
END_PATIENCE = 10.0
MOST_LAYERS = 16
_PROGRAM_FOLDERS = ("usr", "bin", "sbin", "lib", "lib64")


def find() -> Path | None:
    """The ``apptainer`` program: the project's own, or one on the search path."""
    own = PREFIX / "bin" / "apptainer"
    if os.access(own, os.X_OK):
        return own
    found = shutil.which("apptainer")
    return Path(found) if found else None


class Apptainer:
    """The one place that calls the command line.

    Args:
        program: the ``apptainer`` to call.
        image: the root of its containers (see :func:`make_image`).
    """

    def __init__(self, program: Path, image: Path) -> None:
        self._program = program
        self._image = image
        # as root, in a container that lacks it, Apptainer would ask for a capability that it may not have
        drop = {"APPTAINER_DROP_CAPS": "CAP_SYS_RESOURCE"} if os.geteuid() == 0 else {}
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "USER", "TMPDIR") if name in os.environ}
        self._environment = {**kept, **drop}

    def version(self) -> str:
        """Its version. Raises :class:`InfrastructureError` where it does not run."""
        try:
            done = subprocess.run(
                [self._program, "--version"], capture_output=True, text=True, timeout=START_PATIENCE, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InfrastructureError(f"{self._program} does not run: {error}") from error
        if done.returncode:
            raise InfrastructureError(f"{self._program} does not run: {last_line(done.stderr)}")
        return done.stdout.removeprefix("apptainer version ").strip()

    def start(self, layers: Sequence[Path], lease: Lease) -> "Container":
        """Start a container that shows ``layers`` as /layers/0, /layers/1, ... and waits."""
        binds = [f"type=bind,source=/{name},destination=/{name},ro" for name in real_folders()]
        for number, layer in enumerate(layers):
            quoted = str(layer).replace('"', '""')
            binds.append(f'type=bind,"source={quoted}",destination=/layers/{number}')
        return self._exec(self._image, binds, lease)

    def start_with_host(self, image: Path | None, lease: Lease) -> "Container":
        """Start a container that waits and shows the host's files at :data:`leonardo.sandbox.mounts.HOST`.

        ``image``: what its root is, for example a SIF, which must have ``sh`` and ``cat``; else the host's programs.
        """
        binds = [] if image else [f"type=bind,source=/{name},destination=/{name},ro" for name in real_folders()]
        return self._exec(image or self._image, [*binds, f"type=bind,source=/,destination={HOST}"], lease)

    def _exec(self, image: Path, binds: list[str], lease: Lease) -> "Container":
        command = [
            *[str(self._program), "--silent", "exec", "--containall", "--no-home", "--cleanenv"],
            *(["--fakeroot"] if os.geteuid() else []),  # root has no line in /etc/subuid, and needs none
            *(word for bind in binds for word in ("--mount", bind)),
            *[str(image), "sh", "-c", "echo ready; exec cat"],
        ]
        return Container(command, self._environment, lease)


class Container:
    """A running ``apptainer exec`` that ends when its standard input does, also if this process is killed.

    Attributes:
        process: the program in it, whose namespaces can be entered.
        servers: the FUSE processes that Apptainer started for its file systems.
    """

    def __init__(self, command: list[str], environment: dict[str, str], lease: Lease) -> None:
        self._lease = lease
        self._notes: list[Note] = []
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the container
        self._server_handles: list[int] = []
        # a socket, since unlike a pipe it can be shut down while a process that the caller forked holds it open, too
        self._input, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                command,
                cwd="/",  # Apptainer wants to enter the caller's folder otherwise, which another user may not
                env=environment,
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                start_new_session=True,
            )
        except OSError as error:
            self._input.close()
            raise InfrastructureError(f"apptainer does not run: {error}") from error
        finally:
            theirs.close()
        try:
            self._notes.append(lease.note_process(self._process.pid))
            self._wait_until_ready()
            self.process, self.servers = _innermost(self._process.pid)
            self._notes += map(lease.note_process, self.servers)
            self._server_handles = [handle for server in self.servers if (handle := _open_process(server)) is not None]
        except BaseException:
            self.close()
            raise

    def _wait_until_ready(self) -> None:
        output = self._process.stdout
        ready, _, _ = select.select([output], [], [], START_PATIENCE)
        if not ready or output.readline() != b"ready\n":
            self._end_input()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_PATIENCE)
            self._complaints.seek(0)
            said = last_line(self._complaints.read().decode(errors="replace"))
            raise InfrastructureError(
                f"apptainer exec failed: {said or 'it did not start in time'}", failure=FailureClass.RUNTIME
            )

    def _end_input(self) -> None:
        with contextlib.suppress(OSError):
            self._input.shutdown(socket.SHUT_RDWR)
        self._input.close()

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it: gently first, since a killed Apptainer leaves its helpers behind; those that stay are killed."""
        self._end_input()
        try:
            self._process.wait(END_PATIENCE)
        except subprocess.TimeoutExpired:
            self._end_servers()  # one that hangs can hold up the kernel's end of all that waits for it
            self._process.kill()
            self._process.wait()
        self._end_servers()
        while self._notes:
            self._lease.forget(self._notes.pop())
        self._process.stdout.close()
        self._complaints.close()

    def _end_servers(self) -> None:
        while self._server_handles:
            handle = self._server_handles.pop()
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)


class ContainerLife:
    """A sandbox with a container and a holder of its own; ``ended`` is called when they have ended."""

    def __init__(
        self, life: Life, client: HolderClient, container: Container, ended: Callable[["ContainerLife"], None]
    ) -> None:
        self.channel = life.channel
        self._life = life
        self._client = client
        self._container = container
        self._ended = ended

    @property
    def sound(self) -> bool:
        return self._life.sound

    def refusals(self) -> set[str]:
        return self._life.refusals()

    def end(self, *, gone: bool = False) -> str:
        try:
            return self._life.end(gone=gone)
        finally:
            self._client.close()
            self._container.close()
            self._ended(self)


def installed(program: Path | None = None) -> Apptainer:
    """The Apptainer of this machine, or ``program``. Raises :class:`InfrastructureError` where there is none."""
    program = program or find()
    if program is None:
        raise InfrastructureError("Apptainer is not installed", "make apptainer", failure=FailureClass.KERNEL_FEATURE)
    return Apptainer(program, make_image(image_folder()))


def own_identities() -> Identities:
    """What a holder beside Apptainer's containers maps."""
    if os.geteuid() == 0:
        return identities.full()
    # what a plain user's --fakeroot maps is Apptainer's to say; 0 inside is his own id in any case
    return Identities((0, os.geteuid(), 1), (0, os.getegid(), 1))


class ApptainerDriver(NamespacesDriver):
    """Sandboxes in a container each. Layers are handled in one that stays; as root without any.

    Raises :class:`InfrastructureError` where there is no Apptainer.
    """

    name = "apptainer"

    def __init__(self, program: Path | None = None) -> None:
        self._apptainer = installed(program)
        super().__init__(own_identities())
        self.one_id = False  # what a plain user's container maps is Apptainer's; the self-test asks for more than one
        self._keeper: Container | None = None
        self._lives: set[ContainerLife] = set()

    def version(self) -> str:
        """Apptainer's version."""
        return self._apptainer.version()

    def close(self) -> None:
        super().close()
        for life in list(self._lives):
            life.end()
        if self._keeper:
            self._keeper.close()
            self._keeper = None

    def self_test(self) -> dict[str, str]:
        limits = Limits()
        client, container = self._enter_container([])
        try:
            life, ready = self._create(client, "test", self._episode_plan({}, limits), limits)
            life.end()
        finally:
            client.close()
            container.close()
        return ready["checks"]

    def _start_holder(self) -> HolderClient:
        """The holder for layers: it sees the host's folders, so it enters the container's user namespace only."""
        if os.geteuid() == 0:
            return HolderClient(self._identities)
        if self._keeper:
            self._keeper.close()
        self._keeper = self._apptainer.start([], self.lease)
        return HolderClient(self._identities, join=Join(self._keeper.process, ("user",)))

    def _enter_container(self, folders: Sequence[Path]) -> tuple[HolderClient, Container]:
        container = self._apptainer.start(folders, self.lease)
        try:
            # root's container has no user namespace of its own; the holder makes one in it
            kinds = ("mnt",) if os.geteuid() == 0 else ("user", "mnt")
            return HolderClient(self._identities, join=Join(container.process, kinds)), container
        except BaseException:
            container.close()
            raise

    def _open_life(self, stack: LayerStack, limits: Limits) -> Life:
        if self._closed:
            raise InfrastructureError("the sandbox driver is closed")
        folders = [folder.resolve() for folder in (*stack.deltas, stack.base)]
        if len(folders) > MOST_LAYERS:
            raise InfrastructureError(f"a stack of {len(folders)} layers is too high, {MOST_LAYERS} are possible")
        layers = [_as_inside(layer_reference(folder), number) for number, folder in enumerate(folders)]
        client, container = self._enter_container(folders)
        try:
            plan = self._episode_plan(stack.environment, limits).changed(own=stack.own)
            life, _ = self._create(client, "create", plan, limits, layers)
        except BaseException:
            client.close()
            container.close()
            raise
        own = ContainerLife(life, client, container, self._lives.discard)
        self._lives.add(own)
        return own

    def _episode_plan(self, environment: Mapping[str, str], limits: Limits) -> Plan:
        # a plain user's sandbox makes do with the namespace that Apptainer made: there may be leave for no other
        return self._plan(environment, limits).changed(nested=os.geteuid() == 0)


def image_folder() -> Path:
    """Where the containers' root is kept: some empty folders, made once a user, so that a killed run leaves nothing."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "leonardo" / "apptainer-root"


def make_image(folder: Path) -> Path:
    """The root of the containers: the host's programs (bound in when it starts) and mount points for layers.

    Raises :class:`InfrastructureError` where it cannot be made.
    """
    try:
        _make_image(folder)
    except OSError as error:
        raise InfrastructureError(f"{error.filename} cannot be made: {error.strerror}", "set XDG_CACHE_HOME") from error
    return folder


def _make_image(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in _PROGRAM_FOLDERS:
        host = Path("/", name)
        if host.is_symlink():
            with contextlib.suppress(FileExistsError):
                (folder / name).symlink_to(host.readlink())
        elif host.is_dir():
            (folder / name).mkdir(exist_ok=True)
    for name in ("proc", "sys", "dev", "tmp", "etc", "var/tmp", "root", HOST.lstrip("/")):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(MOST_LAYERS):
        (folder / "layers" / str(number)).mkdir(parents=True, exist_ok=True)


def real_folders() -> list[str]:
    """The host's program folders that are not links to another."""
    return [name for name in _PROGRAM_FOLDERS if Path("/", name).is_dir() and not Path("/", name).is_symlink()]


def last_line(text: str) -> str:
    """The last line that is not empty, without Apptainer's level word and colours."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() if line.strip()]
    return lines[-1].removeprefix("FATAL:").strip() if lines else ""


def _as_inside(layer: LayerReference, number: int) -> LayerReference:
    return {**layer, "path": f"/layers/{number}"}


def _innermost(process: int) -> tuple[int, tuple[int, ...]]:
    """The program in the container of an ``apptainer exec``, and the FUSE processes beside it."""
    servers: list[int] = []
    while True:
        # of every thread: Apptainer has several, and any may have started one
        texts = [path.read_text() for path in Path(f"/proc/{process}/task").glob("*/children")]
        children = sorted(int(child) for text in texts for child in text.split())
        fuse = [child for child in children if "fuse" in Path(f"/proc/{child}/comm").read_text()]
        servers += fuse
        others = [child for child in children if child not in fuse]
        if not others:
            return process, tuple(servers)
        process = others[-1]


def _open_process(process: int) -> int | None:
    try:
        return os.pidfd_open(process)
    except OSError:
        return None  # an old kernel, or it has ended
