"""Each of the host's probes as root and as a plain user: where the thing is there, where it is broken, and where what
the finding suggests has been done. docs/doctor.md lists which suggestion is tried by which test."""

import os
import shutil
from pathlib import Path

import pytest

from leonardo.probes import host
from tests.probes.worlds import FIRST_ID, Entered, World, devices

USERS = ("root", "plain")
EPISODE = "rm /etc/passwd && echo new > /workspace/file && cat /workspace/file && ls /etc | wc -l"
CHOWN = "touch file && chown www-data file 2> /dev/null; stat -c %U file"
HOG = "head -c 400000000 /dev/zero | tail -c 390000000 | wc -c"
NO_NAMESPACES = ("unshare", "--user", "--map-root-user", "sh", "-c")
_SET = 'echo {} > /proc/sys/user/max_user_namespaces; exec "$@"'


def namespaces(most: int) -> World:
    """A user who may make so many user namespaces."""
    return World(within=(*NO_NAMESPACES, _SET.format(most), "sh"))


@pytest.fixture
def mapping_programs() -> None:
    """Skips where there are none."""
    if shutil.which("newuidmap") is None or shutil.which("newgidmap") is None:
        pytest.skip("newuidmap and newgidmap are not installed (package uidmap)")


@pytest.fixture
def kernel_with_fuse() -> None:
    """Skips where the kernel has none."""
    if "fuse" not in Path("/proc/filesystems").read_text():
        pytest.skip("this kernel has no FUSE")


@pytest.mark.usefixtures("mapping_programs")
@pytest.mark.parametrize("user", USERS)
def test_nothing_is_missing(entered: Entered, user: str) -> None:
    """The machine as it is: what this kernel and this machine are known to have, by other means."""
    names = tuple(probe().id for probe in host.PROBES)
    found, _ = entered.look(World(), user, names)
    assert set(found) == set(names)
    assert found["kernel"].what == f"Linux {os.uname().release}"
    assert found["user-namespaces"].state == "ok"  # this root could mount, and entered them
    assert found["many-ids"].what == f"65536 subordinate ids from {1_000_000_000 if user == 'root' else FIRST_ID}"
    assert found["loop-devices"].state == ("ok" if Path("/dev/loop-control").exists() else "degraded")
    mode = Path("/dev/fuse").stat().st_mode & 0o777 if Path("/dev/fuse").exists() else 0
    assert found["fuse"].state == ("ok" if mode & 0o6 == 0o6 else "degraded")
    assert found["locale"].state == "ok"


@pytest.mark.parametrize("user", USERS)
def test_an_old_kernel(entered: Entered, user: str) -> None:
    """Degraded by its name; and well, as the finding says, where overlays mount all the same."""
    old = World(within=("setarch", os.uname().machine, "--uname-2.6"))
    found, served = entered.look(old, user, ("kernel", "overlay"), ("namespaces",))
    assert found["kernel"].state == "degraded" and found["kernel"].what.startswith("Linux 2.6.")
    assert found["overlay"].state == "ok" and served["namespaces"].serves


@pytest.mark.parametrize("user", USERS)
def test_no_user_namespaces(entered: Entered, user: str) -> None:
    """None may be made, and no driver serves; with the limit that is asked for, one does."""
    found, served = entered.look(namespaces(0), user, ("user-namespaces",), ("namespaces", "namespaces-one-id"))
    assert found["user-namespaces"].state == "missing" and "max_user_namespaces is 0" in found["user-namespaces"].what
    assert not any(driver.serves for driver in served.values())
    found, served = entered.look(namespaces(1000), user, ("user-namespaces",), ("namespaces", "namespaces-one-id"))
    assert found["user-namespaces"].state == "ok"
    assert any(driver.serves for driver in served.values()), served


@pytest.mark.parametrize("user", USERS)
def test_forbidden_user_namespaces(entered: Entered, user: str) -> None:
    """Where the calls are refused no driver serves, Apptainer's among them: its being there is no way out."""
    labels = ("namespaces", "apptainer-holder", "namespaces-one-id", "namespaces-fuse", "apptainer")
    found, served = entered.look(World(refuses=("namespaces",)), user, ("user-namespaces", "many-ids"), labels)
    assert found["user-namespaces"].state == "missing" and "not permitted" in found["user-namespaces"].what
    assert (found["many-ids"].what == "no user namespace can be made") == (user == "plain")
    assert not any(driver.serves for driver in served.values())
    assert all(driver.note and "\x1b" not in driver.note for driver in served.values()), served


@pytest.mark.usefixtures("kernel_with_fuse")
@pytest.mark.parametrize("user", USERS)
def test_no_overlay(entered: Entered, user: str, tiny_root_archive: Path) -> None:
    """A kernel that refuses them in user namespaces: fuse-overlayfs runs an episode, and no other driver serves."""
    labels = ("namespaces", "apptainer-holder", "namespaces-one-id", "namespaces-fuse", "apptainer")
    found, served = entered.look(World(refuses=("overlay",)), user, ("overlay",), labels, tiny_root_archive, EPISODE)
    assert found["overlay"].state == "degraded", found
    assert "denied" in found["overlay"].what or "not permitted" in found["overlay"].what
    if "not installed" in served["namespaces-fuse"].note:
        pytest.skip("fuse-overlayfs is not installed")
    assert [label for label, driver in served.items() if driver.serves] == ["namespaces-fuse"], served
    assert served["namespaces-fuse"].outcome.startswith("0: new\n"), served
    found, served = entered.look(World(), user, ("overlay",), ("namespaces",), tiny_root_archive, EPISODE)
    assert found["overlay"].state == "ok" and served["namespaces"].outcome.startswith("0: new\n")


@pytest.mark.usefixtures("kernel_with_fuse")
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("mode", ["none", "600", "666"])
def test_fuse(entered: Entered, user: str, mode: str) -> None:
    """No device, or one for root alone: no fuse-overlayfs, others serve; with mode 666 it serves."""
    make = () if mode == "none" else (f"mknod -m {mode} /dev/fuse c 10 229",)
    labels = ("namespaces-fuse", "namespaces")
    found, served = entered.look(World((*devices("fuse"), *make)), user, ("fuse",), labels)
    if "not installed" in served["namespaces-fuse"].note:
        pytest.skip("fuse-overlayfs is not installed")
    well = mode == "666"
    assert (found["fuse"].state == "ok") == served["namespaces-fuse"].serves == well, (found, served)
    if not well:
        words = {"none": "No such file", "600": "Permission denied" if user == "plain" else "mode 600"}[mode]
        assert words in found["fuse"].what
    assert served["namespaces"].serves


def test_unpacked_bases_do_without_fuse(entered: Entered, tiny_root_archive: Path) -> None:
    """A plain user's Apptainer runs episodes on an unpacked base where there is no /dev/fuse."""
    _, served = entered.look(World(devices("fuse")), "plain", (), ("apptainer",), tiny_root_archive, EPISODE)
    if "not installed" in served["apptainer"].note or "does not run" in served["apptainer"].note:
        pytest.skip(f"no Apptainer that a plain user may run: {served['apptainer'].note}")
    assert served["apptainer"].outcome.startswith("0: new\n"), served


_WITHOUT = "mount --bind /dev/null $(command -v {})"


@pytest.mark.usefixtures("mapping_programs")
@pytest.mark.parametrize(
    ("world", "words"),
    [
        (World(ids=0), "in /etc/subuid and /etc/subgid"),
        (World(lines=("mount --bind /dev/null /etc/subgid",)), "in /etc/subuid and /etc/subgid"),
        (World(lines=(_WITHOUT.format("newuidmap"),)), "newuidmap is not installed"),
        (World(lines=(_WITHOUT.format("newgidmap"),)), "newgidmap is not installed"),
        (World(ids=1000), "only 1000 subordinate ids"),
        (
            World(lines=("mount --bind /usr/bin /usr/bin && mount -o remount,bind,nosuid /usr/bin",)),
            "newuidmap fails",
        ),
    ],
    ids=["no line", "no line for groups", "no newuidmap", "no newgidmap", "few ids", "not set-uid"],
)
def test_one_id(entered: Entered, world: World, words: str, tiny_root_archive: Path) -> None:
    """A plain user without a range, or without what maps it: ``chown`` fails in his sandboxes."""
    labels = ("namespaces", "namespaces-one-id")
    found, served = entered.look(world, "plain", ("many-ids",), labels, tiny_root_archive, CHOWN)
    assert found["many-ids"].state == "degraded" and words in found["many-ids"].what
    assert served["namespaces-one-id"].outcome == "0: root", served
    if world.ids != 1000:  # those reach for www-data
        assert not served["namespaces"].serves


@pytest.mark.usefixtures("mapping_programs")
@pytest.mark.parametrize("user", USERS)
def test_many_ids(entered: Entered, user: str, tiny_root_archive: Path) -> None:
    """With the range that is asked for ``chown`` works; root needs none."""
    world = World(ids=0) if user == "root" else World()
    found, served = entered.look(world, user, ("many-ids",), ("namespaces",), tiny_root_archive, CHOWN)
    assert found["many-ids"].state == "ok" and served["namespaces"].outcome == "0: www-data"


def test_root_of_a_container_has_few_ids(entered: Entered) -> None:
    """Root of a namespace with one id is told so."""
    found, _ = entered.look(World(within=("unshare", "--user", "--map-root-user")), "root", ("many-ids",))
    assert found["many-ids"].state == "degraded" and "its own ids" in found["many-ids"].what


@pytest.mark.parametrize("user", USERS)
def test_no_control_groups(entered: Entered, user: str, tiny_root_archive: Path) -> None:
    """None can be made: the watchdog still ends a sandbox that takes more memory than it may."""
    world = World(lines=("mount -t tmpfs -o ro tmpfs /sys/fs/cgroup",))
    found, served = entered.look(world, user, ("cgroups",), ("namespaces",), tiny_root_archive, HOG)
    assert found["cgroups"].state == "degraded"
    assert served["namespaces"].outcome == "SandboxOOMError", served


def test_control_groups_that_were_given(entered: Entered) -> None:
    """A plain user in a group that is his may make groups below it."""
    parent = Path("/sys/fs/cgroup/pids")
    if not os.access(parent / "cgroup.procs", os.W_OK):
        pytest.skip("no control groups of version 1 that this root may write")
    given = parent / f"leonardo-given-{os.getpid()}"
    lines = (f"mkdir {given}", f"chown -R {entered.plain.pw_uid} {given}", f"echo $$ > {given}/cgroup.procs")
    try:
        found, _ = entered.look(World(lines), "plain", ("cgroups",))
    finally:
        given.rmdir()
    assert found["cgroups"].state == "ok"
    assert entered.look(World(), "plain", ("cgroups",))[0]["cgroups"].state == "degraded"


def test_images_without_loop_devices(entered: Entered, tiny_root_archive: Path) -> None:
    """A plain user's Apptainer mounts an image all the same, by squashfuse."""
    unpack = f"mkdir root && tar -xf {entered.readable(tiny_root_archive)} -C root --no-same-owner 2> /dev/null"
    build = "$APPTAINER --silent build --force image.sif root"
    show = (
        "$APPTAINER --silent exec --no-home image.sif cat /etc/group && grep -c squashfuse /proc/mounts /proc/*/cmdline"
    )
    program = next(
        (path for path in (entered.folder / ".tools/apptainer/bin/apptainer",) if path.exists()), "apptainer"
    )
    script = f"export APPTAINER={program}; cd $HOME && {unpack}; {build} && {show}"
    done = entered.run(World(devices("loop-control")), "plain", "sh", "-c", script)
    if "mksquashfs" in done.stderr or "not found" in done.stderr or "Permission denied" in done.stderr:
        pytest.skip(f"no Apptainer that a plain user may run, or no mksquashfs: {done.stderr.strip()[-200:]}")
    assert "www-data:x:33:" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("user", USERS)
def test_loop_devices(entered: Entered, user: str) -> None:
    """Not there, or there."""
    assert entered.look(World(devices("loop-control")), user, ("loop-devices",))[0]["loop-devices"].state == "degraded"
    there = World((*devices("loop-control"), "mknod -m 660 /dev/loop-control c 10 237"))
    assert entered.look(there, user, ("loop-devices",))[0]["loop-devices"].state == "ok"


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(("size", "state"), [("1g", "degraded"), ("9g", "ok"), ("", "missing")])
def test_shared_memory(entered: Entered, user: str, size: str, state: str) -> None:
    """None, little, and as much as the finding asks for."""
    lines = (f"mount -t tmpfs -o size={size},mode=1777 tmpfs /dev/shm",) if size else devices("shm")
    found = entered.look(World(lines), user, ("shared-memory",))[0]["shared-memory"]
    assert found.state == state, found


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    ("files", "processes", "state"),
    [(1024, 4096, "degraded"), (65_536, 4095, "degraded"), (65_536, 4096, "ok")],
)
def test_limits(entered: Entered, user: str, files: int, processes: int, state: str) -> None:
    """Too few open files, too few processes, and as many as the finding asks for."""
    world = World(within=("prlimit", f"--nofile=1024:{files}", f"--nproc={processes}:{processes}"))
    if (done := entered.run(world, user, "true")).returncode != 0:
        pytest.skip(f"limits may not be raised here: {done.stderr.strip()}")
    found = entered.look(world, user, ("limits",))[0]["limits"]
    assert (found.state, found.what) == (state, f"{files} open files, {processes} processes")


@pytest.mark.parametrize("user", USERS)
def test_locale(entered: Entered, user: str) -> None:
    """One without UTF-8 stops a program that reads another letter; the variable that is suggested lets it go on."""
    broken = World(variables={"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"})
    mended = World(variables=broken.variables | {"LC_ALL": "C.UTF-8"})
    program = "import os; open(os.environ['HOME'] + '/log').read()"
    read = ("sh", "-c", 'printf "\\303\\251" > "$HOME/log"; exec "$0" -c "$1"', entered.python, program)
    for world, state in ((broken, "degraded"), (mended, "ok")):
        found = entered.look(world, user, ("locale",))[0]["locale"]
        assert found.state == state, found
        assert (entered.run(world, user, *read).returncode == 0) == (state == "ok")


_RAY = """
import sys, ray
ray.init(object_store_memory=int(sys.argv[1]) << 20, num_cpus=1, include_dashboard=False)
assert len(ray.get(ray.put(b"x" * 30_000_000))) == 30_000_000
"""


@pytest.mark.slow
def test_ray_with_little_shared_memory(entered: Entered) -> None:
    """Its objects go to the disk, and with a smaller object store, as suggested, they do not."""
    python = Path(os.environ.get("LEONARDO_UPSTREAM_VENV", ".venv-upstream")).absolute() / "bin/python"
    if not python.exists():
        pytest.skip("no upstream environment: make upstream-env, or LEONARDO_UPSTREAM_VENV=dir")
    for megabytes, disk in ((1000, True), (80, False)):
        apart = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
        world = World(("mount -t tmpfs -o size=200m,mode=1777 tmpfs /dev/shm",), within=apart)
        done = entered.run(world, "root", str(python), "-c", _RAY, str(megabytes))
        assert done.returncode == 0, done.stderr
        assert ("instead of /dev/shm" in done.stderr) == disk, done.stderr
