"""The root file system of a sandbox: an overlay of read-only layers under a writable layer of bounded size, and the
pseudo file systems. Everything is mounted privately, in the sandbox's own mount namespace.

What a sandbox has besides its layers: /proc of its own processes, /dev with the eight usual nodes, pseudo terminals and
shared memory, /etc/hosts if the image has none. /sys stays an empty folder: it would show the host's hardware, and
nothing that tasks use needs it. /tmp is a folder of the image like any other.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from leonardo.sandbox import linux

STAGE = "/sys"
"""Where a holder keeps its own tmpfs, in its own mount namespace: a folder that every host has, with no layer below."""
SCRATCH = f"{STAGE}/scratch"
LAYERS = f"{STAGE}/layers"

HOST = "/mnt"
"""Where a container that a holder enters shows the host's root: a folder that nearly every image has."""
IMAGE = f"{STAGE}/image"
"""Where such a holder has the container's own root."""
_OLD_ROOT = f"{STAGE}/old-root"

SHARED_MEMORY = 64 << 20
HOSTS = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tsandbox\n"

_NODES = ("null", "zero", "full", "random", "urandom", "tty")
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
_HIDDEN = ("keys", "key-users")
_READ_ONLY = ("sys",)
# files of host root's, which he may read and write although his namespace gives him no capability
_HIDDEN_FROM_HOST_ROOT = ("kcore", "kmsg", "sysrq-trigger", "timer_list", "sched_debug", "vmallocinfo")
_READ_ONLY_FOR_HOST_ROOT = ("acpi", "bus", "driver", "fs", "irq", "mtrr", "scsi", "tty")
_FOLDERS = {"proc": 0o755, "dev": 0o755, "sys": 0o755, "tmp": 0o1777}


class Plan:
    """What a sandbox is made of; travels as JSON.

    Attributes:
        layers: folders as the holder sees them, uppermost first.
        environment: variables of every command.
        disk: size of the writable layer in bytes.
        processes, open_files: limits.
        binds: path inside -> file or folder as the holder sees it; a file is read-only, a folder can be written.
        files: path inside -> text of a small read-only file that is not part of the writable layer.
        network: share the host's network instead of having a loopback of its own.
        nested: whether the sandbox gets a user namespace of its own below the holder's.
        host_root: whether uid 0 inside is the host's root, without capabilities there.
        fuse: whether the overlay is fuse-overlayfs's, mounted beforehand (see fuseoverlay.py).
        own: files of the uppermost layer that are copied into the writable layer, relative to the root.
        groups: descriptors by which the sandbox joins its control groups; they do not travel.
        pretended_owners: answer changes of owner and of user with success, without making them.
    """

    def __init__(
        self,
        layers: Sequence[str],
        environment: Mapping[str, str],
        disk: int,
        processes: int,
        open_files: int,
        *,
        binds: Mapping[str, str] = MappingProxyType({}),
        files: Mapping[str, str] = MappingProxyType({}),
        network: bool = False,
        nested: bool = True,
        host_root: bool = False,
        fuse: bool = False,
        own: Sequence[str] = (),
        groups: Sequence[int] = (),
        pretended_owners: bool = False,
    ) -> None:
        self.layers, self.environment, self.disk = layers, environment, disk
        self.processes, self.open_files = processes, open_files
        self.binds, self.files, self.own, self.groups = binds, files, own, groups
        self.network, self.nested, self.host_root, self.fuse = network, nested, host_root, fuse
        self.pretended_owners = pretended_owners

    def changed(self, **values: object) -> "Plan":
        """The same with other values."""
        return Plan(**{**vars(self), **values})

    def to_json(self) -> dict[str, object]:
        """As JSON values, by which :class:`Plan` can be called."""
        return {**vars(self), "binds": dict(self.binds), "files": dict(self.files), "groups": ()}


def mount_stage(root: str) -> None:
    """A /proc of the holder's processes and its own tmpfs, below ``root``."""
    linux.mount("proc", f"{root}/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    linux.mount("tmpfs", root + STAGE, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=1m,mode=755")


def keep_image() -> None:
    """Bind a container's root, without what is mounted on it, where :func:`return_to_host` finds it.

    This is the guard's, still in the container's user namespace: in one below, a mount and what lies on it are one.
    """
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount(None, "/", None, linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", HOST + STAGE, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=64k,mode=755")
    os.mkdir(HOST + IMAGE, 0o755)
    linux.bind("/", HOST + IMAGE)


def return_to_host() -> None:
    """From a container's root to the host's file tree, which the container has at :data:`HOST`, as the new root.

    The container's own root (see :func:`keep_image`) is then at :data:`IMAGE`: a layer like any other.
    """
    # mounts of another user namespace are locked in their places: a bind of one on itself is not
    linux.mount(HOST, HOST, None, linux.MS_BIND | linux.MS_REC)
    image = os.open(HOST + IMAGE, os.O_PATH | os.O_CLOEXEC)
    mount_stage(HOST)
    for folder in (IMAGE, _OLD_ROOT):
        os.mkdir(HOST + folder, 0o755)
    linux.bind(f"{HOST}/proc/self/fd/{image}", HOST + IMAGE)
    os.close(image)
    linux.pivot_root(HOST, _OLD_ROOT.lstrip("/"))
    linux.unmount(_OLD_ROOT)
    os.rmdir(_OLD_ROOT)


def mount_scratch(size: int, layer: str) -> None:
    """Mount the tmpfs of ``size`` bytes that takes the writable layer, whose root looks like ``layer``'s root."""
    inodes = max(65536, size // 4096)
    linux.mount("tmpfs", SCRATCH, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"size={size},nr_inodes={inodes},mode=755")
    for name in ("upper", "work", "root", "points", "files"):
        os.mkdir(f"{SCRATCH}/{name}", 0o755)
    copy_attributes(layer, f"{SCRATCH}/upper")


def copy_attributes(source: str, target: str) -> None:
    """Owner, mode and times of a folder."""
    status = os.stat(source)
    try:
        os.chown(target, status.st_uid, status.st_gid)
    except OSError:
        pass  # an owner outside of the map: ours, then
    os.chmod(target, stat.S_IMODE(status.st_mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


@contextlib.contextmanager
def _same_times(folder: str) -> Iterator[tuple[int, int]]:
    """What the block adds to ``folder`` leaves no trace in its times: two sandboxes of a state must not differ."""
    status = os.stat(folder)
    times = (status.st_atime_ns, status.st_mtime_ns)
    yield times
    os.utime(folder, ns=times)


def enter_root(plan: Plan) -> None:
    """Build the root below :data:`SCRATCH` (mounted) and make it the root of this process."""
    root = f"{SCRATCH}/root"
    if plan.fuse:  # mounted already, in another user namespace: locked in its place, unlike a bind of it
        linux.bind(root, root)
    else:
        _mount_overlay(plan.layers, root)
    for name, mode in _FOLDERS.items():
        if not os.path.isdir(f"{root}/{name}"):
            with _same_times(root) as times:
                os.mkdir(f"{root}/{name}")
                os.chmod(f"{root}/{name}", mode)
                os.utime(f"{root}/{name}", ns=times)
    linux.mount("proc", f"{root}/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    _make_devices(f"{root}/dev")
    _protect_kernel_files(f"{root}/proc", as_host_root=plan.host_root)
    for target, content in plan.files.items():
        _place_file(root, target, content)
    for target, source in plan.binds.items():
        linux.bind(source, resolve(root, target), read_only=not os.path.isdir(source))
    if not plan.network:
        _ensure_hosts(root)
    linux.pivot_root_here(root)


def _mount_overlay(layers: Sequence[str], target: str) -> None:
    # userxattr: without it an unprivileged overlay cannot mark a folder as opaque, and rm -rf of a base folder fails
    options = f"lowerdir={':'.join(layers)},upperdir={SCRATCH}/upper,workdir={SCRATCH}/work,userxattr"
    linux.mount("overlay", target, "overlay", linux.MS_NODEV, options)


def _make_devices(folder: str) -> None:
    linux.mount("tmpfs", folder, "tmpfs", linux.MS_NOSUID, "size=1m,mode=755")
    for name in _NODES:
        if os.path.exists(f"/dev/{name}"):
            os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o666))
            linux.bind(f"/dev/{name}", f"{folder}/{name}")
    for name in ("shm", "pts"):
        os.mkdir(f"{folder}/{name}", 0o755)
    linux.mount("tmpfs", f"{folder}/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"size={SHARED_MEMORY},mode=1777")
    options = "newinstance,ptmxmode=0666,mode=620"
    linux.mount("devpts", f"{folder}/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, options)
    os.symlink("pts/ptmx", f"{folder}/ptmx")
    for name, target in _LINKS.items():
        os.symlink(target, f"{folder}/{name}")


def _protect_kernel_files(folder: str, *, as_host_root: bool) -> None:
    """Hide and protect what in /proc is the machine's; nothing in a sandbox may unmount (see systemcalls.py)."""
    with contextlib.suppress(OSError), open(f"{folder}/sys/kernel/shmall", "wb") as stream:
        stream.write(b"%d" % (SHARED_MEMORY >> 12))  # System V's shared memory, in pages, of this ipc namespace
    for name in (*_HIDDEN, *(_HIDDEN_FROM_HOST_ROOT if as_host_root else ())):
        if os.path.exists(f"{folder}/{name}"):
            linux.bind("/dev/null", f"{folder}/{name}")
    for name in (*_READ_ONLY, *(_READ_ONLY_FOR_HOST_ROOT if as_host_root else ())):
        if os.path.exists(f"{folder}/{name}"):
            linux.bind(f"{folder}/{name}", f"{folder}/{name}", read_only=True)


def _ensure_hosts(root: str) -> None:
    """Programs look localhost up there; images made for container runtimes often leave it to them."""
    folder, path = f"{root}/etc", f"{root}/etc/hosts"
    if os.path.isdir(folder) and not os.path.islink(folder) and not os.path.lexists(path):
        with _same_times(folder) as times:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            os.write(descriptor, HOSTS.encode())  # not by open(): that would cost a tenth of a sandbox's start
            os.close(descriptor)
            os.utime(path, ns=times)


def _place_file(root: str, target: str, content: str) -> None:
    inside = resolve(root, target)
    if target.startswith("/dev/"):  # our own tmpfs: no mount is needed to keep it out of the writable layer
        os.makedirs(os.path.dirname(inside), exist_ok=True)
        with open(inside, "w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(content)
        os.chmod(inside, 0o755)
        return
    source = f"{SCRATCH}/files/{len(os.listdir(f'{SCRATCH}/files'))}"
    with open(source, "w", encoding="utf-8") as stream:
        stream.write(content)
    linux.bind(source, inside)


def hide_accounts() -> None:
    """In this mount namespace the host has no users and groups by name, so that tools write their numbers."""
    for path in ("/etc/passwd", "/etc/group", "/etc/nsswitch.conf"):
        if os.path.exists(path):
            linux.bind("/dev/null", path)


def show_layers(layers: Sequence[str], target: str) -> None:
    """Mount ``layers``, read-only."""
    linux.mount("overlay", target, "overlay", linux.MS_RDONLY, f"lowerdir={':'.join(layers)},userxattr")


def make_mount_points(
    layers: Sequence[str],
    targets: dict[str, bool],
    show: Callable[[Sequence[str], str], None] = show_layers,
) -> Sequence[str]:
    """Layers with one more on top, if it is needed, that holds what is missing of ``targets`` (path -> is a folder).

    Mount points made this way are in no writable layer, so a capture does not see them. Folders on the way to them are
    repeated with their attributes; symbolic links are followed inside the layers.
    """
    view, points = f"{SCRATCH}/root", f"{SCRATCH}/points"
    show((points, *layers), view)
    missing = []
    for target, is_folder in targets.items():
        path = resolve(view, target)
        if not os.path.lexists(path):
            missing.append((path.removeprefix(view).strip("/"), is_folder))
    linux.unmount(view)  # a layer must not change while it is mounted
    for path, is_folder in missing:
        parts = path.split("/")
        folders = parts if is_folder else parts[:-1]
        for depth in range(1, len(folders) + 1):
            folder = "/".join(folders[:depth])
            if not os.path.isdir(f"{points}/{folder}"):
                os.mkdir(f"{points}/{folder}", 0o755)
        if not is_folder:
            os.close(os.open(f"{points}/{path}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    folders = sorted((folder for folder, _, _ in os.walk(points)), key=len, reverse=True)
    for folder in folders:  # the deepest first: making a child changes its parent's times
        original = next((found for layer in layers if os.path.isdir(found := f"{layer}{folder[len(points) :]}")), None)
        if original:
            copy_attributes(original, folder)
    return (points, *layers) if missing else layers


def resolve(root: str, path: str) -> str:
    """``path`` below ``root`` with symbolic links followed as they would be with ``root`` as the root.

    Parts that do not exist are kept as they are.
    """
    rest = [part for part in path.split("/") if part not in ("", ".")][::-1]
    done: list[str] = []
    links = 0
    while rest:
        part = rest.pop()
        if part == "..":
            done = done[:-1]
            continue
        here = "/".join([root, *done, part])
        if os.path.islink(here) and links < 40:
            links += 1
            target = os.readlink(here)
            if target.startswith("/"):
                done = []
            rest += [item for item in target.split("/") if item not in ("", ".")][::-1]
        else:
            done.append(part)
    return "/".join([root, *done])
