"""Set-ups, captures and layers, on every driver."""

import gzip
import io
import tarfile
import threading
import time
from pathlib import Path

import pytest

from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.sandbox.driver import Driver, LayerStack, Limits
from tests.sandbox.conftest import MIB, SMALL

# lsetxattr(2); the image has no program for it
ATTRIBUTES = r"""
LC_ALL=C perl -e '
  sub set {
    my ($path, $name, $value) = @_;
    syscall(189, $path, $name, $value, length $value, 0) == 0 or die "$name: $!"
  }
  set("/data/attributed", "user.note", "kept");
  set("/data/capable", "security.capability", pack("V5", 0x02000001, 1 << 13, 0, 0, 0));
'
"""
SHOW_ATTRIBUTES = r"""
LC_ALL=C perl -e '
  for (["/data/attributed", "user.note"], ["/data/capable", "security.capability"]) {
    my $value = "\0" x 64;
    my $size = syscall(192, $$_[0], $$_[1], $value, 64);
    print unpack("H*", substr($value, 0, $size)), "\n"
  }
'
"""
MAKE = r"""
mkdir -p /data/deep/er
printf 'plain' > /data/plain
printf 'hard' > /data/hard-1; ln /data/hard-1 /data/deep/hard-2
ln -s /etc/passwd /data/symbolic
printf 'suid' > /data/suid; chmod 4755 /data/suid
printf 'sgid' > /data/sgid; chmod 2750 /data/sgid
mkdir -m 1777 /data/sticky
mkfifo -m 640 /data/pipe
truncate -s 300M /data/sparse; printf 'end' >> /data/sparse
printf 'a' > '/data/with space, comma: colon'
printf 'x' > /data/attributed; printf 'x' > /data/capable
touch -d '2001-02-03 04:05:06.123456789' /data/plain
rm /etc/group                         # a whiteout
rm -rf /var; mkdir /var; touch /var/new   # an opaque folder
touch -d '2002-01-01 00:00:00.5' /data/deep/er /data/deep
chmod 711 /
"""
OWNERS = "chown 33:33 /data/plain /data/sticky; chown -h 33:0 /data/symbolic\n"
SHOW = r"""
pseudo='-path /proc -o -path /dev -o -path /sys -o -path /etc/hosts -o -path /etc/resolv.conf'
find / -xdev \( $pseudo \) -prune -o -type d -printf '%p|%y|%m|%U|%G|%T@\n' | sort
find / -xdev \( $pseudo \) -prune -o ! -type d -printf '%p|%y|%m|%U|%G|%T@|%s|%n|%l\n' | sort
stat -c %b /data/sparse
cat /data/plain /data/hard-1 /data/deep/hard-2; tail -c 3 /data/sparse; ls /var
test -e /etc/group || echo deleted
"""


def _run(driver: Driver, stack: LayerStack, command: str) -> str:
    backend = driver.backend(stack, limits=Limits(disk=64 * MIB))
    backend.start()
    result = backend.run_command(command)
    backend.close()
    assert result.exit_code == 0, result.stderr
    return result.stdout


def _has_perl(driver: Driver, stack: LayerStack) -> bool:
    return "perl" in _run(driver, stack, "ls /usr/bin")


def test_a_capture_keeps_everything(driver: Driver, stack: LayerStack, folder: Path) -> None:
    owners = "" if "one user id" in driver.degraded else OWNERS
    perl = _has_perl(driver, stack)
    script = MAKE + owners + (ATTRIBUTES if perl else "") + SHOW + (SHOW_ATTRIBUTES if perl else "")
    made = driver.set_up(stack, script, folder / "all.tar.gz", timeout=60, limits=SMALL)
    assert made.exit_code == 0, made.log
    driver.unpack(folder / "all.tar.gz", folder / "all")
    layered = LayerStack(stack.base, (folder / "all",))
    seen = _run(driver, layered, SHOW + (SHOW_ATTRIBUTES if perl else ""))
    assert seen.splitlines() == made.log.splitlines()
    assert "/data/plain|f|664|" in seen
    assert "plainhardhardend" in seen
    assert "|981173106.1234567890|" in seen
    if perl:
        assert seen.splitlines()[-2:] == [b"kept".hex(), "0100000200200000000000000000000000000000"]


# user::rw-, user:33:r--, user:4321:rw-, group::r--, mask::rw-, other::---, as setxattr(2) takes it; 33 has a name
ACL = (
    "02000000"
    + "01000600ffffffff"
    + "0200040021000000"
    + "02000600e1100000"
    + "04000400ffffffff"
    + ("10000600ffffffff" + "20000000ffffffff")
)
SET_ACL = f"""
printf 'x' > /listed
LC_ALL=C perl -e '
  my ($path, $name, $value) = ("/listed", "system.posix_acl_access", pack("H*", "{ACL}"));
  syscall(189, $path, $name, $value, length $value, 0) == 0 or die $!
'
"""
SHOW_ACL = """
LC_ALL=C perl -e '
  my ($path, $name, $value) = ("/listed", "system.posix_acl_access", "\\0" x 64);
  my $size = syscall(191, $path, $name, $value, 64);
  print unpack("H*", substr($value, 0, $size))
'
"""


def test_access_control_lists_are_kept_by_number(driver: Driver, stack: LayerStack, folder: Path) -> None:
    """GNU tar would write the host's names of users, which another host may give to others."""
    if driver.one_id:
        pytest.skip("an access control list names other ids, and there is one only")
    archive, unpacked = folder / "acl.tar.gz", folder / "acl"
    result = driver.set_up(stack, SET_ACL, archive, timeout=60)
    if "Operation not supported" in result.log:
        pytest.skip("the writable layer's file system has no access control lists here")
    assert result.exit_code == 0, result.log
    with tarfile.open(archive) as content:
        (kept,) = (value for member in content for name, value in member.pax_headers.items() if "acl.access" in name)
    assert "user:33:r--" in kept
    driver.unpack(archive, unpacked)
    assert _run(driver, LayerStack(stack.base, (unpacked,)), SHOW_ACL) == ACL


def test_owners_may_be_pretended(driver: Driver, stack: LayerStack, folder: Path) -> None:
    script = "printf x > /x; chown 33:33 /x; chmod 4755 /x; [ -u /x ]"
    if driver.one_id:
        assert driver.set_up(stack, script, folder / "refused.tar.gz", timeout=60).exit_code != 0
    result = driver.set_up(stack, script, folder / "pretended.tar.gz", timeout=60, pretended_owners=True)
    assert result.exit_code == 0, result.log
    with tarfile.open(folder / "pretended.tar.gz") as content:
        assert content.getmember("./x").uid == 0


def test_an_archive_has_deletions_in_neutral_form_and_no_traces_of_the_overlay(
    driver: Driver, stack: LayerStack, folder: Path
) -> None:
    script = "rm /etc/group; rm -rf /var; mkdir /var; touch /etc/base-marker; mkdir /workspace/sub"
    assert driver.set_up(stack, script, folder / "marks.tar.gz", timeout=30, limits=SMALL).exit_code == 0
    with tarfile.open(folder / "marks.tar.gz") as archive:
        members = {member.name: member for member in archive.getmembers()}
    assert members["./etc/group"].ischr()
    assert (members["./etc/group"].devmajor, members["./etc/group"].devminor) == (0, 0)
    assert members["./var"].pax_headers["SCHILY.xattr.user.overlay.opaque"] == "y"
    assert list(members) == sorted(members)
    for member in members.values():
        assert not {key for key in member.pax_headers if "overlay" in key} - {"SCHILY.xattr.user.overlay.opaque"}
        assert not {"atime", "ctime"} & member.pax_headers.keys()


def test_the_host_s_files_of_a_set_up_are_not_captured(
    driver: Driver, stack: LayerStack, folder: Path, tmp_path: Path
) -> None:
    cache, single = tmp_path / "cache", tmp_path / "single"
    cache.mkdir()
    cache.chmod(0o777)
    (cache / "wheel").write_text("from the host\n")
    single.write_text("single\n")
    single.chmod(0o666)
    script = """
        cat /opt/cache/wheel /workspace/single /etc/resolv.conf
        echo x > /opt/cache/new
        test -r "$SSL_CERT_FILE" || test -z "$SSL_CERT_FILE"
        if echo x > /workspace/single; then exit 9; fi
        tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '
    """
    mounts = {"/opt/cache": cache, "/workspace/single": single}
    made = driver.set_up(stack, script, folder / "empty.tar.gz", timeout=30, limits=SMALL, mounts=mounts)
    assert made.exit_code == 0, made.log
    assert "from the host\nsingle\n" + Path("/etc/resolv.conf").read_text() in made.log
    assert (cache / "new").read_text() == "x\n"
    assert single.read_text() == "single\n"
    host_devices = [line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()[2:]]
    assert set(host_devices) <= set(made.log.split())
    with tarfile.open(folder / "empty.tar.gz") as archive:
        assert archive.getnames() == ["."]  # not even a folder on the way to a mount point


def test_the_same_set_up_gives_the_same_bytes(driver: Driver, stack: LayerStack, folder: Path) -> None:
    if driver.name == "namespaces-fuse":
        pytest.skip("fuse-overlayfs gives a folder a new time when it copies something in it up")
    script = "for i in $(seq 50); do echo $i > /workspace/$i; touch -d @1 /workspace/$i; done; touch -d @2 /workspace"
    for name in ("one", "two"):
        assert driver.set_up(stack, script, folder / f"{name}.tar.gz", timeout=30, limits=SMALL).exit_code == 0
    assert (folder / "one.tar.gz").read_bytes() == (folder / "two.tar.gz").read_bytes()


def test_layers_stack(driver: Driver, stack: LayerStack, folder: Path) -> None:
    first = LayerStack(stack.base, (), {"WHO": "first"})
    script = (
        "#!/bin/bash\nset -e\n[[ $WHO == first ]]; echo lower > /etc/one; echo lower > /etc/two; rm /etc/base-marker"
    )
    assert driver.set_up(first, script, folder / "first.tar.gz", timeout=30, limits=SMALL).exit_code == 0
    driver.unpack(folder / "first.tar.gz", folder / "first")
    second = LayerStack(stack.base, (folder / "first",))
    script = "test ! -e /etc/base-marker; echo upper > /etc/two; echo upper > /etc/base-marker"
    assert driver.set_up(second, script, folder / "second.tar.gz", timeout=30, limits=SMALL).exit_code == 0
    driver.unpack(folder / "second.tar.gz", folder / "second")
    both = LayerStack(stack.base, (folder / "second", folder / "first"))
    assert _run(driver, both, "cat /etc/one /etc/two /etc/base-marker") == "lower\nupper\nupper\n"


def test_a_failing_script_leaves_no_archive(driver: Driver, stack: LayerStack, folder: Path) -> None:
    made = driver.set_up(stack, "echo before; echo bad >&2; false; echo after", folder / "no.tar.gz", timeout=30)
    assert (made.exit_code, made.log, made.timed_out, made.disk_full) == (1, "before\nbad\n", False, False)
    assert not list(folder.glob("*no.tar.gz*"))


def test_a_set_up_that_takes_too_long_is_ended(driver: Driver, stack: LayerStack, folder: Path, gone, marker) -> None:
    script = f"echo begun; setsid sleep {marker} & sleep {marker}"
    begun = time.monotonic()
    made = driver.set_up(stack, script, folder / "late.tar.gz", timeout=0.5, limits=SMALL)
    assert time.monotonic() - begun < 8
    assert (made.exit_code, made.timed_out, made.log) == (124, True, "begun\n")
    assert gone(marker)
    assert not list(folder.glob("*late.tar.gz*"))


def test_background_processes_end_with_the_set_up(
    driver: Driver, stack: LayerStack, folder: Path, gone, marker
) -> None:
    made = driver.set_up(stack, f"sleep {marker} & echo x > /x", folder / "background.tar.gz", timeout=30, limits=SMALL)
    assert made.exit_code == 0
    assert gone(marker)


def test_a_full_disk_is_told_from_another_failure(driver: Driver, stack: LayerStack, folder: Path) -> None:
    script = "head -c 200000000 /dev/zero > /filler"
    made = driver.set_up(stack, script, folder / "full.tar.gz", timeout=30, limits=SMALL)
    assert made.exit_code != 0
    assert made.disk_full
    # seen although the script cleans up after itself
    script = "head -c 200000000 /dev/zero > /filler || { sleep 0.3; rm /filler; exit 9; }"
    made = driver.set_up(stack, script, folder / "full.tar.gz", timeout=30, limits=SMALL)
    assert (made.exit_code, made.disk_full) == (9, True)
    assert not list(folder.glob("*full.tar.gz*"))


def test_a_set_up_that_takes_too_much_memory_is_ended(driver: Driver, stack: LayerStack, folder: Path) -> None:
    script = "#!/bin/bash\nx=$(head -c 100000000 /dev/zero | tr '\\0' x); y=$x$x$x; sleep 30"
    made = driver.set_up(stack, script, folder / "memory.tar.gz", timeout=60, limits=Limits(memory=150 * MIB))
    assert made.exit_code == 137
    assert "memory" in made.log


def test_a_missing_shell_fails_the_set_up(driver: Driver, stack: LayerStack, folder: Path) -> None:
    made = driver.set_up(stack, "#!/no/such/shell\n", folder / "shell.tar.gz", timeout=30, limits=SMALL)
    assert made.exit_code == 126


def test_set_ups_run_side_by_side_with_sandboxes(driver: Driver, stack: LayerStack, folder: Path) -> None:
    results = {}

    def prepare(number: int) -> None:
        script = f"sleep 0.5; echo {number} > /number"
        results[number] = driver.set_up(stack, script, folder / f"side-{number}.tar.gz", timeout=30, limits=SMALL)

    threads = [threading.Thread(target=prepare, args=(number,)) for number in range(3)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    assert _run(driver, stack, "echo meanwhile") == "meanwhile\n"
    assert time.monotonic() - begun < 3
    for thread in threads:
        thread.join()
    assert [results[number].exit_code for number in range(3)] == [0, 0, 0]


def test_an_unpacked_layer_is_whole_or_absent(driver: Driver, folder: Path, tiny_root_archive: Path) -> None:
    broken = folder / "broken.tar"
    broken.write_bytes(tiny_root_archive.read_bytes()[:3_000_000])
    with pytest.raises(InfrastructureError, match="unpacking"):
        driver.unpack(broken, folder / "broken")
    with pytest.raises(InputError, match="cannot be read"):
        driver.unpack(folder / "absent.tar", folder / "absent")
    with pytest.raises(InputError, match="exists"):
        driver.unpack(tiny_root_archive, folder / "base")
    assert not list(folder.glob("*broken*/")) + list(folder.glob(".*partial*"))


def test_a_compressed_archive_is_recognised(driver: Driver, folder: Path) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        entry = tarfile.TarInfo("./file")
        entry.size = 4
        archive.addfile(entry, io.BytesIO(b"data"))
    (folder / "small.bin").write_bytes(gzip.compress(stream.getvalue()))
    driver.unpack(folder / "small.bin", folder / "small")
    assert (folder / "small" / "file").read_text() == "data"


def test_layers_are_removed_whatever_is_in_them(driver: Driver, stack: LayerStack, folder: Path) -> None:
    script = "mkdir -p -m 000 /a/b; mkdir /c; touch /c/x; chmod 500 /c; rm /etc/group"
    assert driver.set_up(stack, script, folder / "odd.tar.gz", timeout=30, limits=SMALL).exit_code == 0
    driver.unpack(folder / "odd.tar.gz", folder / "odd")
    driver.remove(folder / "odd")
    driver.remove(folder / "odd")
    assert not list(folder.glob("*odd*/")) + list(folder.glob(".*odd*"))


def test_a_layer_that_is_not_there_is_named(driver: Driver, folder: Path) -> None:
    with pytest.raises(InfrastructureError, match="no-such-base"):
        driver.backend(LayerStack(folder / "no-such-base")).start()


def test_a_start_that_fails_harms_no_other_sandbox(driver: Driver, stack: LayerStack, folder: Path) -> None:
    running = driver.backend(stack, limits=SMALL)
    running.start()
    (folder / "file").write_text("no folder")
    for layers in (LayerStack(folder / "file"), LayerStack(stack.base, (folder / "file",))):
        with pytest.raises(InfrastructureError):
            driver.backend(layers, limits=SMALL).start()
    with pytest.raises(InfrastructureError):
        driver.set_up(LayerStack(folder / "file"), "true", folder / "never.tar.gz", timeout=5, limits=SMALL)
    assert running.run_command("echo unharmed").stdout == "unharmed\n"
    running.close()


def test_a_full_host_disk_is_an_infrastructure_failure(driver: Driver, stack: LayerStack, folder: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("the host has no /dev/full")
    archive = folder / "device.tar.gz"
    original = driver._capture

    def capture_to_full_device(job, target):  # the archive's file stands on a disk without room
        import tempfile

        real = tempfile.mkstemp

        def full(**_):
            import os

            descriptor, name = real(dir=folder, prefix=".full-")
            os.close(descriptor)
            return os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC), name

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "mkstemp", full)
            original(job, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_capture", capture_to_full_device)
        with pytest.raises(InfrastructureError, match="No space left") as caught:
            driver.set_up(stack, "echo x > /x", archive, timeout=30, limits=SMALL)
    assert caught.value.failure == FailureClass.SPACE
    assert not archive.exists()
