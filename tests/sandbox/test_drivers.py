"""The choice of a driver."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.sandbox import apptainer, drivers
from leonardo.sandbox.apptainerholder import ApptainerHolderDriver
from leonardo.sandbox.driver import LayerStack
from leonardo.sandbox.drivers import Candidate
from leonardo.sandbox.identities import NoRangeError
from leonardo.sandbox.namespaces import NamespacesDriver
from tests.sandbox.conftest import SMALL, another


class _Driver:
    """Just enough of a driver to be chosen or not."""

    def __init__(self, faults: dict[str, str], degraded: str = "") -> None:
        self.faults, self.degraded, self.closed = faults, degraded, False

    def self_test(self) -> dict[str, str]:
        return self.faults

    def close(self) -> None:
        self.closed = True

    def discard(self, folder: Path) -> None:
        raise AssertionError(folder)


def _refuse(error: Exception):
    def refuse() -> None:
        raise error

    return refuse


def test_the_first_that_works_is_taken_and_the_others_say_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    broken, good = _Driver({"opaque": "Input/output error", "proc": ""}), _Driver({"chown": "no"}, degraded="one id")
    order = (
        Candidate("first", _refuse(NoRangeError("no line in /etc/subuid"))),
        Candidate("second", _refuse(InfrastructureError("no clone"))),
        Candidate("third", lambda: broken),
        Candidate("fourth", lambda: good),
    )
    monkeypatch.setattr(drivers, "_ORDERS", {"auto": order})
    monkeypatch.delenv(drivers.VARIABLE, raising=False)
    choice = drivers.choose()
    assert choice.driver is good
    assert broken.closed
    assert not good.closed
    assert [str(refusal) for refusal in choice.refusals] == [
        "first: no line in /etc/subuid",
        "second: no clone",
        "third: the self-test failed: opaque (Input/output error)",
    ]
    monkeypatch.setattr(drivers, "_ORDERS", {"auto": order[:2]})
    with pytest.raises(InfrastructureError, match=r"first: no line in /etc/subuid; second: no clone"):
        drivers.open_driver()


def test_the_environment_names_a_driver_where_the_caller_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(drivers.VARIABLE, "magic")
    with pytest.raises(InputError, match="'magic'"):
        drivers.open_driver()
    with pytest.raises(InputError, match="'other'"):
        drivers.open_driver("other")


def test_a_missing_or_broken_apptainer_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(apptainer, "PREFIX", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(InfrastructureError, match="make apptainer"):
        apptainer.ApptainerDriver()
    program = tmp_path / "apptainer"
    program.write_text("#!/bin/sh\necho 'FATAL:   it is broken' >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert apptainer.find() == program
    with apptainer.ApptainerDriver() as driver:
        with pytest.raises(InfrastructureError, match="it is broken"):
            driver.version()
        with pytest.raises(InfrastructureError, match="it is broken"):
            driver.self_test()


def test_the_project_s_own_apptainer_is_preferred(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    own = tmp_path / "bin" / "apptainer"
    own.touch()
    own.chmod(0o755)
    monkeypatch.setattr(apptainer, "PREFIX", tmp_path)
    assert apptainer.find() == own
    assert os.access(own, os.X_OK)


def test_a_survey_names_every_driver() -> None:
    assert list(drivers.survey()) == [
        *["namespaces", "apptainer-holder", "namespaces-one-id", "namespaces-fuse", "apptainer"],
    ]


def _image_of(folder: Path, image: Path) -> Path:
    """An image file (SIF) of a root's folder."""
    if os.geteuid() == 0:
        pytest.skip("a plain user's: root's sandboxes do not have host root's files")
    program = apptainer.find()
    if program is None or not shutil.which("mksquashfs"):
        pytest.skip("Apptainer or mksquashfs (package squashfs-tools) is not installed")
    environment = {**os.environ, "APPTAINER_DROP_CAPS": "CAP_SYS_RESOURCE"}
    subprocess.run(
        [program, "--silent", "build", "--force", image, folder], check=True, env=environment, capture_output=True
    )
    return image


@pytest.fixture(scope="module")
def holder_driver() -> Iterator[ApptainerHolderDriver]:
    """Skips, with the reason, where it does not serve."""
    try:
        opened = drivers.APPTAINER_HOLDER.opened()
    except InfrastructureError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


@pytest.fixture(scope="module")
def image(tiny_root_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tests' root as an image file."""
    folder = tmp_path_factory.mktemp("image")
    (folder / "root").mkdir()
    subprocess.run(["tar", "-xf", tiny_root_archive, "-C", folder / "root"], check=True)
    return _image_of(folder / "root", folder / "base.sif")


def test_a_base_can_be_an_image_that_apptainer_mounts(
    holder_driver: ApptainerHolderDriver, image: Path, tmp_path: Path
) -> None:
    archive, delta = tmp_path / "delta.tar.gz", tmp_path / "delta"
    on_base = LayerStack(image, environment={"NAME": "value"})
    script = "rm -r /workspace; mkdir /workspace; echo $NAME > /workspace/made; rm /etc/base-marker; chown 33 /tmp"
    result = holder_driver.set_up(on_base, script, archive, timeout=30)
    assert result.exit_code == 0, result.log
    with tarfile.open(archive) as made:
        assert set(made.getnames()) == {".", "./etc", "./etc/base-marker", "./tmp", "./workspace", "./workspace/made"}
    holder_driver.unpack(archive, delta)
    try:
        backend = holder_driver.backend(LayerStack(image, (delta,)), limits=SMALL)
        backend.start()
        result = backend.run_command(
            "cat /workspace/made; ls /etc/base-marker; stat -c %u /tmp; ls /mnt; echo x > /made"
        )
        assert result.stdout == "value\n33\n", result.stderr
        assert "base-marker" in result.stderr
        backend.start()
        assert backend.run_command("ls /made").exit_code != 0
        backend.close()
    finally:
        holder_driver.remove(delta)


def test_a_hung_or_killed_fuse_process_ends_its_sandboxes_alone(
    holder_driver: ApptainerHolderDriver, image: Path, tiny_root_archive: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    holder_driver.unpack(tiny_root_archive, base)
    other, backend = (holder_driver.backend(LayerStack(layer), limits=SMALL) for layer in (base, image))
    try:
        other.start()
        for number in (signal.SIGSTOP, signal.SIGKILL):
            backend.start()
            (hold,) = holder_driver._holds.values()
            servers = hold.container.servers
            assert servers
            begun = time.monotonic()
            for server in servers:
                os.kill(server, number)
            with pytest.raises(InfrastructureError, match=r"squashfuse.*(has not answered|ended)"):
                backend.run_command("find / -xdev -type f -exec cat {} + > /dev/null; sleep 20")
            assert time.monotonic() - begun < 5
            assert other.run_command("echo unharmed").stdout == "unharmed\n"
            with pytest.raises(InfrastructureError):
                backend.run_command("true")
        backend.start()
        assert backend.run_command("echo again").stdout == "again\n"
    finally:
        backend.close()
        other.close()
        holder_driver.remove(base)


def test_a_stopped_fuse_overlay_ends_its_sandbox_alone(tiny_root_archive: Path, tmp_path: Path) -> None:
    try:
        opened = drivers.FUSE.opened()
    except InfrastructureError as error:
        pytest.skip(str(error))
    with opened as driver:
        base = tmp_path / "base"
        driver.unpack(tiny_root_archive, base)
        backend, other = (driver.backend(LayerStack(base), limits=SMALL) for _ in range(2))
        before = _named("fuse-overlayfs")
        backend.start()
        (server,) = _named("fuse-overlayfs") - before
        other.start()
        begun = time.monotonic()
        os.kill(server, signal.SIGSTOP)
        with pytest.raises(InfrastructureError, match="fuse-overlayfs"):
            backend.run_command("ls -lR / > /dev/null; sleep 20")
        assert time.monotonic() - begun < 5
        assert other.run_command("echo unharmed").stdout == "unharmed\n"
        backend.close()
        other.close()
        driver.remove(base)


def test_a_fuse_overlay_whose_disk_hangs_ends_its_sandbox_alone(tiny_root_archive: Path, tmp_path: Path) -> None:
    """It is not stopped, but waits for what lies below it, here another FUSE process, which is."""
    if os.geteuid():
        pytest.skip("what a plain user mounts by FUSE, his sandboxes' other ids may not see")
    try:
        with drivers.FUSE.opened() as driver:
            base, shown = tmp_path / "base", tmp_path / "shown"
            driver.unpack(tiny_root_archive, base)
    except InfrastructureError as error:
        pytest.skip(str(error))
    shown.mkdir()
    below = subprocess.Popen(["fuse-overlayfs", "-f", "-o", f"lowerdir={base},allow_other", shown])
    try:
        while not shown.is_mount():
            time.sleep(0.01)
        with drivers.FUSE.opened() as driver:
            backend, other = (driver.backend(LayerStack(layer), limits=SMALL) for layer in (shown, base))
            backend.start()
            other.start()
            begun = time.monotonic()
            os.kill(below.pid, signal.SIGSTOP)
            with pytest.raises(InfrastructureError, match="fuse-overlayfs"):
                backend.run_command("cat /usr/bin/* > /dev/null; sleep 20")
            assert time.monotonic() - begun < 5
            assert other.run_command("echo unharmed").stdout == "unharmed\n"
            backend.close()
            other.close()
    finally:
        below.kill()
        below.wait()
        subprocess.run(["umount", "-l", shown], check=False)
        with drivers.FUSE.opened() as driver:
            driver.remove(base)


def _named(name: str) -> set[int]:
    """Processes of this machine with a name."""
    found = set()
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "comm").read_text().strip() == name:
                found.add(int(folder.name))
        except OSError:
            continue
    return found


def test_a_command_is_not_blamed_for_files_that_failed(holder_driver: ApptainerHolderDriver, image: Path) -> None:
    """Killed at any moment, squashfuse must not turn into an exit code or an error message of a command."""
    backend = holder_driver.backend(LayerStack(image), limits=SMALL)
    for delay in (0.0, 0.001, 0.002, 0.004, 0.006, 0.008):
        backend.start()
        (hold,) = holder_driver._holds.values()
        killers = [threading.Timer(delay, os.kill, (server, signal.SIGKILL)) for server in hold.container.servers]
        for killer in killers:
            killer.start()
        with pytest.raises(InfrastructureError, match=r"squashfuse.*ended"):
            for _ in range(1000):
                result = backend.run_command("cat /usr/bin/* > /dev/null; echo done")
                assert (result.stdout, result.stderr, result.exit_code) == ("done\n", "", 0)
    backend.close()


def test_a_full_disk_of_the_node_is_named_and_leaves_nothing(
    driver: NamespacesDriver, stack: LayerStack, tiny_root_archive: Path, tmp_path: Path
) -> None:
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "full", tmp_path], check=False).returncode:
        pytest.skip("a small file system can be mounted by root only")
    try:
        with another(driver) as own:
            fill = "head -c 3000000 /dev/urandom > /filler"
            for work in (
                lambda: own.unpack(tiny_root_archive, tmp_path / "base"),
                lambda: own.set_up(stack, fill, tmp_path / "delta.tar.gz", timeout=60),
            ):
                with pytest.raises(InfrastructureError, match="space") as caught:
                    work()
                assert caught.value.failure is FailureClass.SPACE
                assert not list(tmp_path.iterdir())
    finally:
        subprocess.run(["umount", tmp_path], check=True)


STOPPED = """
import os, signal, sys, time
from pathlib import Path
from leonardo.sandbox.apptainerholder import ApptainerHolderDriver
from leonardo.sandbox.driver import LayerStack
driver = ApptainerHolderDriver()
backend = driver.backend(LayerStack(Path(sys.argv[1])))
backend.start()
backend.run_command(f"setsid sleep {sys.argv[2]} &")
(hold,) = driver._holds.values()
for server in hold.container.servers:
    os.kill(server, signal.SIGSTOP)
print(*hold.container.servers, hold.container.process, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_caller_killed_while_fuse_hangs_leaves_nothing(
    holder_driver: ApptainerHolderDriver, image: Path, gone, marker: str
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", STOPPED, image, marker]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert gone(marker, seconds=5)
    end = time.monotonic() + 5
    while any(Path(f"/proc/{process}").exists() for process in done.stdout.split()):
        assert time.monotonic() < end, "Apptainer's processes are still there"
        time.sleep(0.05)
