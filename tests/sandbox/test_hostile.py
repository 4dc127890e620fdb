"""What an episode does to harm: afterwards the host, a sandbox that runs at the same time and the next episode are as
they were. :func:`attacker` asserts that for every test here."""

import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leonardo.sandbox import served
from leonardo.sandbox.backend import SandboxOOMError
from leonardo.sandbox.driver import LayerStack, Limits
from leonardo.sandbox.mounts import SHARED_MEMORY
from leonardo.sandbox.namespaces import NamespacesDriver
from leonardo.sandbox.served import ServedBackend
from tests.sandbox.conftest import MIB, SMALL

SERVICE = "(while true; do echo x >> /tmp/ticks; sleep 0.05; done) > /dev/null 2>&1 &"


def _digest(folder: Path) -> str:
    """Of a layer's files: names, kinds, modes, sizes, times, contents."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        digest.update(f"{path} {status.st_mode} {status.st_size} {status.st_mtime_ns} {status.st_nlink}".encode())
        if path.is_file() and not path.is_symlink():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def base_digest(stack: LayerStack) -> str:
    return _digest(stack.base)


@pytest.fixture(scope="module")
def neighbour(driver: NamespacesDriver, stack: LayerStack) -> Iterator[ServedBackend]:
    """A sandbox with a service, which outlives every attack."""
    backend = driver.backend(stack, timeout=20, limits=SMALL)
    backend.start()
    backend.run_command(f"echo mine > /tmp/mine; {SERVICE}")
    yield backend
    backend.close()


@pytest.fixture
def attacker(
    driver: NamespacesDriver,
    stack: LayerStack,
    neighbour: ServedBackend,
    base_digest: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ServedBackend]:
    """A sandbox to attack from, beside a host process whose command line says python."""
    monkeypatch.setattr(served, "GRACE", 1.0)
    host = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    backend = driver.backend(stack, timeout=20, limits=SMALL)
    backend.start()
    try:
        yield backend
        begun = time.monotonic()
        backend.start()  # the next episode
        assert time.monotonic() - begun < 5
        assert backend.run_command("cat /etc/base-marker; ls /tmp").stdout == "base\n"
        backend.close()
        ticks = int(neighbour.run_command("wc -l < /tmp/ticks").stdout)
        deadline = time.monotonic() + 5  # a busy machine may give it nothing for a while
        while not (ticking := int(neighbour.run_command("wc -l < /tmp/ticks").stdout) > ticks):
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        assert ticking
        assert neighbour.run_command("cat /tmp/mine").stdout == "mine\n"
        assert host.poll() is None
        assert subprocess.run(["true"], check=False).returncode == 0
        assert _digest(stack.base) == base_digest
    finally:
        backend.close()
        host.kill()
        host.wait()


@pytest.fixture(params=["groups", "no-groups"])
def bounded_by(request: pytest.FixtureRequest, driver: NamespacesDriver, monkeypatch: pytest.MonkeyPatch) -> str:
    """With control groups, and as where none can be made. To be asked for before :func:`attacker`."""
    if request.param == "no-groups":
        monkeypatch.setattr(driver, "groups", None)
    elif driver.groups is None:
        pytest.skip("no control group can be made here")
    return request.param


def _needs(backend: ServedBackend, program: str) -> None:
    if backend.run_command(f"command -v {program}").exit_code:
        pytest.skip(f"the host has no {program}")


# ---- processes


def _bound_holds(backend: ServedBackend) -> bool:
    """Whether 200 processes are too many: a counted attempt, before one that is not counted."""
    try:
        backend.run_command("for i in $(seq 200); do sleep 5 & done", timeout=1.5)
        running = backend.execute("set -- /proc/[0-9]*; echo $#", timeout=5)
    except SandboxOOMError:
        return True
    finally:
        backend.start()
    return running.exit_code != 0 or int(running.outputs[0]) < 100


@pytest.mark.usefixtures("bounded_by")
def test_a_fork_bomb_stays_within_its_bound(attacker: ServedBackend, driver: NamespacesDriver) -> None:
    if os.geteuid() == 0 and "one user id" in driver.degraded and driver.groups is None:
        pytest.skip("the processes of host root are held by the watchdog alone: nothing to try")
    assert _bound_holds(attacker)
    begun = time.monotonic()
    try:
        result = attacker.run_command("bomb() { bomb | bomb & }; bomb; sleep 1; bomb; wait", timeout=2)
        # a shell that gives up forking at its leisure may end well before the time is up
        assert result.ended_by in ("timeout", "processes") or (result.exit_code == 0 and "fork" in result.stderr)
    except SandboxOOMError:
        pass  # ended by the watchdog
    attacker.close()
    assert time.monotonic() - begun < 20


@pytest.mark.usefixtures("bounded_by")
def test_a_fork_bomb_under_many_user_ids_is_ended_or_bounded(attacker: ServedBackend, gone, marker: str) -> None:
    _needs(attacker, "perl")
    if attacker.run_command("chown 33 /tmp").exit_code:
        pytest.skip("there is one user id only")
    attacker.run_command("chown 0 /tmp")
    # counted: at most 30 * 40 processes
    bomb = (
        "for $u (1..30) { if (!fork) { $< = $> = 1000 + $u; for (1..40) { if (!fork) { sleep 20; exit } } sleep 20 } }"
    )
    ended = False
    try:
        attacker.run_command(f"perl -e '{bomb} sleep 3' {marker}", timeout=5)
        count = int(attacker.execute("set -- /proc/[0-9]*; echo $#").outputs[0] or 0)
    except SandboxOOMError as error:
        ended, count = "processes" in str(error), 0
    assert ended or count < 2 * SMALL.processes
    attacker.close()
    assert gone(marker)


@pytest.mark.parametrize("attack", ["kill -9 -1", "pkill -9 -f python; pkill -9 -f sandbox; pkill -9 .", "kill -9 1"])
def test_killing_what_can_be_seen(attacker: ServedBackend, attack: str) -> None:
    attacker.run_command(f"{attack}; sleep 0.1")
    assert attacker.run_command("echo alive").stdout == "alive\n"


def test_stopped_children_hold_nothing_up(attacker: ServedBackend, gone, marker: str) -> None:
    attacker.run_command(f"for i in 1 2 3 4 5; do setsid sleep {marker} & done; kill -STOP $(jobs -p); kill -STOP -1")
    attacker.run_command("kill -STOP -1", timeout=1)
    begun = time.monotonic()
    attacker.close()
    assert time.monotonic() - begun < 3
    assert gone(marker)


def test_process_1_cannot_be_crippled(attacker: ServedBackend) -> None:
    _needs(attacker, "perl")
    before = attacker.run_command("cut -d' ' -f18,19 /proc/1/stat").stdout
    attacker.run_command("renice -n 19 -p 1; chrt -i -p 0 1; prlimit --pid 1 --nofile=0 --cpu=1 --as=4096; taskset 1 1")
    # the same without programs: prlimit(1, RLIMIT_NOFILE, {0, 0}), setpriority(PRIO_PROCESS, 1, 19)
    if os.uname().machine == "x86_64":
        calls = '$none = pack("QQ", 0, 0); print syscall(302, 1, 7, $none, 0), syscall(141, 0, 1, 19)'
        assert attacker.run_command(f"perl -e '{calls}'").stdout == "-1-1"
    assert attacker.run_command("echo alive; cut -d' ' -f18,19 /proc/1/stat").stdout == f"alive\n{before}"


# ---- what fills


def test_a_disk_filler(attacker: ServedBackend) -> None:
    result = attacker.run_command("yes > /tmp/filler; yes > /root/more; exit 1")
    assert "No space left" in result.stderr
    assert result.ended_by == "disk"
    assert attacker.run_command("rm /tmp/filler /root/more; echo ok > /tmp/x; cat /tmp/x").stdout == "ok\n"


def test_an_inode_filler(attacker: ServedBackend, driver: NamespacesDriver) -> None:
    fill = "mkdir /tmp/many; cd /tmp/many; seq 100000 | xargs touch; exit 1"
    if driver.name == "namespaces-fuse":  # so slow with one folder's many files that time runs out before inodes do
        assert attacker.run_command(fill, timeout=5).ended_by == "timeout"
        return
    result = attacker.run_command(fill, timeout=60)
    assert "No space left" in result.stderr
    assert result.ended_by == "disk"
    attacker.run_command("rm -rf /tmp/many", timeout=60)
    assert attacker.run_command("echo ok > /tmp/x; cat /tmp/x").stdout == "ok\n"


@pytest.mark.usefixtures("bounded_by")
def test_a_memory_hog_of_many_processes(attacker: ServedBackend) -> None:
    hog = "x=$(head -c 60000000 /dev/zero | tr '\\0' x); sleep 40"
    with pytest.raises(SandboxOOMError, match="memory"):
        attacker.run_command(f"for i in $(seq 20); do ({hog}) & done; wait", timeout=60)


@pytest.mark.usefixtures("bounded_by")
def test_memory_that_no_process_owns_is_bounded(attacker: ServedBackend, driver: NamespacesDriver) -> None:
    _needs(attacker, "perl")
    if os.uname().machine != "x86_64":
        pytest.skip("written for x86-64")
    # memfd_create, written to and never mapped
    hog = '$n = "x"; $f = syscall(319, $n, 0); open(M, ">&=", $f); $b = "x" x 1e6; syswrite(M, $b) for 1..900; sleep'
    with pytest.raises(SandboxOOMError, match="memory"):
        attacker.run_command(f"perl -e '{hog}'", timeout=60)  # what it holds it keeps until it is ended


def test_shared_memory_is_bounded(attacker: ServedBackend) -> None:
    _needs(attacker, "perl")
    if os.uname().machine != "x86_64":
        pytest.skip("written for x86-64")
    most = attacker.run_command("cat /proc/sys/kernel/shmall").stdout.strip()
    if most != str(SHARED_MEMORY >> 12):
        pytest.skip("this kernel does not let a namespace bound its shared memory")
    hoard = "$n = 0; $n += 1 while syscall(29, 0, 1 << 20, 0666) >= 0; print $n"
    assert int(attacker.run_command(f"perl -e '{hoard}'").stdout) <= SHARED_MEMORY >> 20
    assert "No space left" in attacker.run_command("head -c 100M /dev/zero > /dev/shm/x").stderr


def test_descriptors_and_pipes_are_hoarded(attacker: ServedBackend, neighbour: ServedBackend) -> None:
    _needs(attacker, "perl")
    hoard = "while (pipe(my $r, my $w)) { syswrite($w, q(x) x 4096); push @all, $r, $w } print scalar(@all); sleep 2"
    begun = threading.Thread(
        target=lambda: attacker.run_command(f"for i in $(seq 20); do perl -e '{hoard}' & done; wait")
    )
    begun.start()
    time.sleep(1)
    assert neighbour.run_command("cat /tmp/mine | cat").stdout == "mine\n"
    begun.join()
    assert attacker.run_command("echo alive | cat").stdout == "alive\n"


@pytest.mark.parametrize("size", [100 * MIB, pytest.param(1 << 30, marks=pytest.mark.slow)], ids=["100-MiB", "1-GiB"])
def test_an_output_flood(attacker: ServedBackend, size: int) -> None:
    before = _resident()
    result = attacker.run_command(f"head -c {size} /dev/zero; head -c {size} /dev/zero >&2", timeout=120)
    assert result.exit_code == 0
    assert len(result.stdout) < SMALL.output + 100
    assert len(result.stderr) < SMALL.output + 100
    assert _resident() - before < 64 * MIB


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_deep_tree_of_folders(attacker: ServedBackend, driver: NamespacesDriver, stack: LayerStack) -> None:
    _needs(attacker, "perl")
    make = 'chdir "/tmp"; for (1..2000) { mkdir "d"; chdir "d" or die } open F, ">end" or die'
    result = attacker.run_command(f"perl -e '{make}'")
    assert result.exit_code == 0, result.stderr
    assert attacker.listing().count("\n") > 2000
    with pytest.raises((RuntimeError, FileNotFoundError)):
        attacker.read_file("/tmp/" + "d/" * 2000 + "end" + "x" * 4000)
    begun = time.monotonic()
    attacker.close()
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("count", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_very_many_files(driver: NamespacesDriver, stack: LayerStack, attacker: ServedBackend, count: int) -> None:
    if driver.name == "namespaces-fuse":
        pytest.skip("fuse-overlayfs needs minutes for so many files in one folder: the inode filler shows what ends it")
    roomy = driver.backend(stack, limits=Limits(disk=count * 4200, memory=2 << 30, processes=64))
    roomy.start()
    starting = time.monotonic()
    try:
        made = roomy.run_command(f"mkdir /tmp/m; cd /tmp/m; seq {count} | xargs touch; ls -f | wc -l", timeout=300)
        assert int(made.stdout) >= count, made.stderr
    finally:
        begun = time.monotonic()
        roomy.close()
    # on a busy machine the kernel takes longer for both
    assert time.monotonic() - begun < max(5, (begun - starting) / 2)


# ---- files and devices


@pytest.mark.parametrize(
    "path", ["/proc/self/environ", "/proc/self/exe", "/proc/self/maps", "/proc/1/root/etc/passwd", "/proc/self/fd/0"]
)
def test_files_of_process_1_are_not_read_for_a_caller(attacker: ServedBackend, path: str) -> None:
    """Process 1 reads files for the controller: a link may not lead it to what is its own."""
    attacker.run_command(f"mkdir /logs/verifier; ln -s {path} /logs/verifier/reward.txt")
    with pytest.raises((RuntimeError, FileNotFoundError)):
        attacker.read_file("/logs/verifier/reward.txt")
    with pytest.raises(RuntimeError):
        attacker.write_file("/logs/verifier/reward.txt", "x")
    assert attacker.run_command("echo alive").stdout == "alive\n"


def test_paths_with_dots_stay_inside(attacker: ServedBackend, tmp_path: Path) -> None:
    attacker.write_file(f"/../../../../..{tmp_path}/escaped", "x")
    assert not (tmp_path / "escaped").exists()
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(FileNotFoundError):
        attacker.read_file(f"../../../../..{tmp_path}/secret")
    attacker.run_command(f"ln -s /../../../../..{tmp_path}/secret /tmp/link")
    with pytest.raises(FileNotFoundError):
        attacker.read_file("/tmp/link")


def test_links_that_change_while_files_are_put(attacker: ServedBackend, tmp_path: Path) -> None:
    from tests.sandbox.test_conformance import _archive, _member

    attacker.run_command(
        "mkdir -p /tests /elsewhere; (while true; do rm -rf /tests/sub; ln -s /elsewhere /tests/sub; rm -f /tests/sub; "
        "mkdir /tests/sub; done) > /dev/null 2>&1 &"
    )
    for number in range(50):
        try:
            attacker.put_archive("/tests", _archive((_member(f"sub/{number}"), b"x")))
        except RuntimeError:
            continue
    assert attacker.run_command("ls /elsewhere").stdout == ""
    assert attacker.run_command("echo alive").stdout == "alive\n"


def test_no_device_can_be_made_or_opened(attacker: ServedBackend) -> None:
    result = attacker.run_command("mknod /tmp/disk b 8 0; mknod /tmp/memory c 1 1; ls /tmp; find /dev -type b")
    assert result.stdout == ""
    nodes = attacker.run_command(
        "cd /dev; for node in *; do [ -c $node ] && [ ! -L $node ] && echo $node; done"
    ).stdout.split()
    # Apptainer's container has no /dev/full to pass on
    assert (
        {"null", "random", "tty", "urandom", "zero"}
        <= set(nodes)
        <= {"full", "null", "random", "tty", "urandom", "zero"}
    )


def test_mounts_cannot_be_changed(attacker: ServedBackend) -> None:
    _needs(attacker, "mount")
    before = attacker.run_command("cat /proc/mounts").stdout
    attacker.run_command("umount -l /proc; umount -l /dev; umount -l /dev/shm; umount -l /; umount -a -l")
    for attempt in ("-t tmpfs x /tmp", "-t proc x /tmp", "-t sysfs x /tmp", "--bind / /tmp", "-o remount,rw /proc/sys"):
        assert attacker.run_command(f"mount {attempt}").exit_code != 0, attempt
    assert attacker.run_command("cat /proc/mounts").stdout == before


def test_the_base_cannot_be_written_to(attacker: ServedBackend) -> None:
    attacker.run_command("echo x >> /etc/base-marker; chmod 777 /etc /usr; rm -rf /usr/lib/*/lib*; touch /usr/bin/bash")
    # the attacker's fixture compares the base


# ---- other processes


def test_process_1_cannot_be_traced(attacker: ServedBackend) -> None:
    for name in ("environ", "mem", "maps", "root/", "cwd/", "fd/", "exe", "task/1/mem"):
        assert attacker.run_command(f"ls /proc/1/{name} && head -c 1 /proc/1/{name}").exit_code != 0, name
    _needs(attacker, "perl")
    if os.uname().machine == "x86_64":
        # ptrace(PTRACE_SEIZE, 1), process_vm_readv(1), pidfd_getfd(pidfd_open(1), 0)
        calls = (
            'print syscall(101, 0x4206, 1, 0, 0), syscall(310, 1, 0, 0, 0, 0, 0) > 0 ? "read" : "",'
            "syscall(438, syscall(434, 1, 0), 0, 0)"
        )
        assert attacker.run_command(f"perl -e '{calls}'").stdout == "-1-1"


def test_abstract_sockets_of_others_are_out_of_reach(attacker: ServedBackend, neighbour: ServedBackend) -> None:
    _needs(attacker, "perl")
    name = f"leonardo-test-{os.getpid()}"
    address = f'pack("Sa*", 1, "\\0{name}")'
    listen = f'socket(S, 1, 1, 0); bind(S, {address}) or die; listen(S, 1); accept(C, S); print C "theirs"'
    connect = f'socket(S, 1, 1, 0); connect(S, {address}) or die "refused"; print <S>'
    with socket.socket(socket.AF_UNIX) as host:
        host.bind(f"\0{name}")
        host.listen()
        assert "refused" in attacker.run_command(f"perl -e '{connect}'").stderr
    neighbour.run_command(f"perl -e '{listen}' > /dev/null 2>&1 & sleep 0.3")
    assert "refused" in attacker.run_command(f"perl -e '{connect}'").stderr
    assert neighbour.run_command(f"perl -e '{connect}'").stdout == "theirs"


def test_sandboxes_share_no_memory_or_queues(attacker: ServedBackend, neighbour: ServedBackend) -> None:
    _needs(attacker, "perl")
    if os.uname().machine != "x86_64":
        pytest.skip("written for x86-64")
    # shmget(42, 4096, IPC_CREAT | 0666), then without IPC_CREAT next door
    assert int(neighbour.run_command("perl -e 'print syscall(29, 42, 4096, 01666)'").stdout) >= 0
    assert attacker.run_command("perl -e 'print syscall(29, 42, 4096, 0666)'").stdout == "-1"
    neighbour.run_command("echo theirs > /dev/shm/shared")
    assert attacker.run_command("ls /dev/shm").stdout == ""


def test_a_sandbox_cannot_restart_the_machine_or_itself(attacker: ServedBackend, marker: str) -> None:
    _needs(attacker, "perl")
    if os.uname().machine != "x86_64":
        pytest.skip("written for x86-64")
    call = "print syscall(169, 0xfee1dead, 672274793, 0x1234567, 0)"
    assert attacker.run_command(f"perl -e '{call}'").stdout == "-1"
    assert attacker.run_command("echo alive").stdout == "alive\n"


def test_a_service_in_a_session_of_its_own_ends_with_the_episode(attacker: ServedBackend, gone, marker: str) -> None:
    attacker.run_command(f"(trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM; sleep {marker}; true' &) &")
    attacker.close()
    assert gone(marker)
