"""What every driver's sandboxes do alike: commands, files, limits, isolation, reset and end."""

import io
import os
import tarfile
import threading
import time
from pathlib import Path

import pytest

from leonardo.sandbox import served
from leonardo.sandbox.backend import SandboxBackend, SandboxOOMError
from leonardo.sandbox.driver import Driver, LayerStack, Limits
from tests.sandbox.conftest import MIB, SMALL

# ---- commands


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("true", 0),
        ("exit 7", 7),
        ("kill -9 $$", 137),
        ("kill -TERM $$", 143),
        ("no-such-program", 127),
        ("/etc/passwd", 126),
        ("sh -c 'kill -SEGV $$'; exit $?", 139),
    ],
)
def test_exit_codes_are_exact(sandbox: SandboxBackend, command: str, code: int) -> None:
    assert sandbox.run_command(command).exit_code == code


def test_stdout_and_stderr_are_apart(sandbox: SandboxBackend) -> None:
    result = sandbox.run_command("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)


def test_standard_input_is_empty(sandbox: SandboxBackend) -> None:
    assert sandbox.run_command("cat; echo done").stdout == "done\n"


def test_commands_start_in_the_root_as_root_with_a_clean_environment(
    sandbox: SandboxBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "x")
    sandbox.start()
    assert sandbox.run_command("pwd; id -u; echo $HOME $LANG $FROM_THE_STACK").stdout == "/\n0\n/root C.UTF-8 yes\n"
    names = {line.partition("=")[0] for line in sandbox.run_command("env").stdout.splitlines()}
    assert names == {*served.DEFAULT_ENVIRONMENT, "FROM_THE_STACK", "PWD", "SHLVL", "_"}


def test_long_output_keeps_head_and_tail_and_says_how_much_is_missing(sandbox: SandboxBackend) -> None:
    result = sandbox.run_command("echo first; seq 1000000; echo last")
    assert result.stdout.startswith("first\n1\n2\n")
    assert result.stdout.endswith("\n1000000\nlast\n")
    assert "bytes left out" in result.stdout
    assert len(result.stdout) < SMALL.output + 100


def test_a_flood_of_output_is_drained_in_time(sandbox: SandboxBackend) -> None:
    result = sandbox.run_command("head -c 200000000 /dev/zero", timeout=15)
    assert result.exit_code == 0
    assert len(result.stdout) < SMALL.output + 100


def test_invalid_utf8_is_replaced(sandbox: SandboxBackend) -> None:
    assert sandbox.run_command(r"printf 'a\377b\0c'").stdout == "a�b\0c"


def test_a_command_of_a_megabyte(sandbox: SandboxBackend) -> None:
    result = sandbox.run_command(f"text={'x' * 1_000_000}; echo ${{#text}}")
    assert result.stdout == "1000000\n", result.stderr


def test_a_timeout_gives_124_and_the_partial_output(sandbox: SandboxBackend, gone, marker: str) -> None:
    begun = time.monotonic()
    result = sandbox.run_command(f"echo early; sleep {marker} & sleep {marker}", timeout=0.5)
    assert time.monotonic() - begun < 5
    assert result.exit_code == 124
    assert result.stdout == "early\n"
    assert result.stderr.splitlines()[0] == "Command timed out after 0.5s."
    assert gone(marker)
    assert sandbox.run_command("echo alive").stdout == "alive\n"


def test_what_ignores_term_is_killed(sandbox: SandboxBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "GRACE", 0.5)
    result = sandbox.run_command("trap '' TERM; echo stubborn; while true; do sleep 0.1; done", timeout=0.5)
    assert (result.exit_code, result.stdout) == (124, "stubborn\n")


def test_a_stopped_command_is_killed(sandbox: SandboxBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "GRACE", 0.5)
    assert sandbox.run_command("kill -STOP $$", timeout=0.5).exit_code == 124


def test_a_timeout_works_without_proc(sandbox: SandboxBackend, gone, marker: str) -> None:
    sandbox.run_command("umount -l /proc")
    assert sandbox.run_command(f"sleep {marker}", timeout=0.3).exit_code == 124
    assert gone(marker)


def test_background_services_hold_nothing_up_and_survive(sandbox: SandboxBackend) -> None:
    begun = time.monotonic()
    service = "(while true; do echo tick; echo x >> /tmp/ticks; sleep 0.05; done) &"
    assert "started\n" in sandbox.run_command(f"{service} echo started").stdout
    assert time.monotonic() - begun < 2
    # it goes on writing to the pipe it inherited: that must neither block nor kill it
    sandbox.run_command("sleep 0.5")
    before = int(sandbox.run_command("wc -l < /tmp/ticks").stdout)
    sandbox.run_command("sleep 0.5")
    assert int(sandbox.run_command("wc -l < /tmp/ticks").stdout) > before > 3


def test_commands_run_side_by_side(sandbox: SandboxBackend) -> None:
    results: dict[int, str] = {}

    def run(number: int) -> None:
        results[number] = sandbox.run_command(f"sleep 0.4; echo {number}").stdout

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: f"{number}\n" for number in range(6)}
    assert time.monotonic() - begun < 2


def test_a_command_with_a_nul_byte_is_refused(sandbox: SandboxBackend) -> None:
    assert sandbox.run_command("echo a\0b").exit_code == 126


def test_no_bash_in_the_image_is_said(driver: Driver, stack: LayerStack) -> None:
    backend = driver.backend(LayerStack(stack.base, stack.deltas, {"PATH": "/nowhere"}), limits=SMALL)
    backend.start()
    result = backend.run_command("true")
    backend.close()
    assert result.exit_code == 127
    assert "bash" in result.stderr


# ---- files


def test_files_go_in_and_out(sandbox: SandboxBackend) -> None:
    data = bytes(range(256)) * 5000
    sandbox.write_file("/new/folder/data.bin", data)
    sandbox.write_file("/new/text", "grüße\n")
    assert sandbox.read_file("/new/folder/data.bin", binary=True) == data
    assert sandbox.read_file("/new/text") == "grüße\n"
    assert sandbox.run_command("cat /new/text").stdout == "grüße\n"
    sandbox.write_file("/new/text", "short")
    assert sandbox.read_file("/new/text") == "short"


def test_reading_what_is_not_a_file(sandbox: SandboxBackend) -> None:
    with pytest.raises(FileNotFoundError):
        sandbox.read_file("/no/such")
    with pytest.raises(FileNotFoundError):
        sandbox.read_file("/etc/passwd/below")
    with pytest.raises(IsADirectoryError):
        sandbox.read_file("/etc")
    sandbox.run_command("mkfifo /tmp/pipe; truncate -s 1T /tmp/huge")
    with pytest.raises(RuntimeError, match="regular"):
        sandbox.read_file("/tmp/pipe")
    with pytest.raises(RuntimeError, match="larger"):
        sandbox.read_file("/tmp/huge")
    with pytest.raises(RuntimeError, match="write_file"):
        sandbox.write_file("/etc", "a folder")
    assert sandbox.run_command("echo alive").stdout == "alive\n"


def _archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for info, data in members:
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o755
    return info


def test_archives_are_extracted(sandbox: SandboxBackend) -> None:
    data = _archive(
        (_member("sub", tarfile.DIRTYPE), b""),
        (_member("sub/run.sh"), b"#!/bin/sh\necho ran\n"),
        (_member("link", tarfile.SYMTYPE, "sub/run.sh"), b""),
        (_member("hard", tarfile.LNKTYPE, "sub/run.sh"), b""),
        (_member("outward", tarfile.SYMTYPE, "/etc/passwd"), b""),
    )
    sandbox.put_archive("/tests", data)
    assert sandbox.run_command("/tests/link; /tests/hard; readlink /tests/outward").stdout == "ran\nran\n/etc/passwd\n"
    sandbox.put_archive("/tests", data)  # over what is there


@pytest.mark.parametrize(
    "members",
    [
        [(_member("../escaped"), b"x")],
        [(_member("/escaped"), b"x")],
        [(_member("a/../../escaped"), b"x")],
        [(_member("link", tarfile.SYMTYPE, "/"), b""), (_member("link/escaped"), b"x")],
        [(_member("link", tarfile.SYMTYPE, ".."), b""), (_member("link/escaped"), b"x")],
        [(_member("hard", tarfile.LNKTYPE, "../etc/passwd"), b"")],
        [(_member("node", tarfile.CHRTYPE), b"")],
    ],
    ids=["parent", "absolute", "inner-parent", "absolute-link", "relative-link", "hard-link", "device"],
)
def test_archives_that_lead_outside_are_refused(sandbox: SandboxBackend, members: list) -> None:
    with pytest.raises(RuntimeError, match="put_archive"):
        sandbox.put_archive("/tests", _archive(*members))
    assert sandbox.run_command("ls -d /escaped /tests/node").stdout == ""


def test_a_symbolic_link_is_replaced_not_written_through(sandbox: SandboxBackend) -> None:
    sandbox.run_command("mkdir /tests; ln -s /etc/passwd /tests/file")
    sandbox.put_archive("/tests", _archive((_member("file"), b"new\n")))
    assert sandbox.run_command("cat /tests/file; head -c 4 /etc/passwd").stdout == "new\nroot"


def test_what_is_no_archive_is_refused(sandbox: SandboxBackend) -> None:
    with pytest.raises(RuntimeError, match="put_archive"):
        sandbox.put_archive("/tests", b"no tar")


# ---- reset and end


def test_a_reset_brings_the_prepared_state_back(sandbox: SandboxBackend) -> None:
    pseudo = "-path /proc -o -path /dev -o -path /sys"
    state = f"find / -xdev \\( {pseudo} \\) -prune -o -printf '%p %y %m %U %G %s %T@ %l\\n' | sort | md5sum"
    before = sandbox.run_command(state).stdout
    sandbox.run_command("rm -rf /etc /usr/lib/*/libpcre*; echo changed > /workspace/x; mkdir /etc; chmod 700 /var")
    assert sandbox.run_command("ls /etc").stdout == ""
    sandbox.start()
    assert sandbox.run_command(state).stdout == before
    assert sandbox.run_command("cat /etc/base-marker").stdout == "base\n"


def test_the_base_is_never_written_to(sandbox: SandboxBackend, stack: LayerStack) -> None:
    sandbox.run_command("echo changed > /etc/base-marker; rm /etc/group")
    assert (stack.base / "etc/base-marker").read_text() == "base\n"
    assert (stack.base / "etc/group").exists()


def test_nothing_is_left_after_the_end(sandbox: SandboxBackend, processes_with, marker: str) -> None:
    sandbox.run_command(f"setsid sleep {marker} & (sleep {marker} &) ; sleep {marker} &")
    deadline = time.monotonic() + 5
    while len(processes_with(marker)) < 3 and time.monotonic() < deadline:  # they become it a moment after the fork
        time.sleep(0.02)
    assert len(processes_with(marker)) == 3
    mounts = Path("/proc/self/mounts").read_text()
    sandbox.close()
    assert not processes_with(marker)
    sandbox.close()
    assert Path("/proc/self/mounts").read_text() == mounts
    with pytest.raises(RuntimeError, match="not started"):
        sandbox.run_command("true")


def test_a_sandbox_is_not_started_by_itself(driver: Driver, stack: LayerStack) -> None:
    backend = driver.backend(stack)
    for use in (
        lambda: backend.run_command("true"),
        lambda: backend.read_file("/etc/passwd"),
        lambda: backend.write_file("/x", ""),
        lambda: backend.put_archive("/", b""),
    ):
        with pytest.raises(RuntimeError, match="not started"):
            use()


def test_killing_everything_inside_leaves_the_sandbox_usable(sandbox: SandboxBackend) -> None:
    assert sandbox.run_command("kill -9 -1; sleep 0.2", timeout=10).exit_code in (0, 137)
    sandbox.run_command("kill -9 1; kill -TERM 1; kill -INT 1; kill -HUP 1; kill -STOP 1; kill -USR1 1")
    assert sandbox.run_command("echo alive").stdout == "alive\n"


# ---- limits


def test_a_full_disk_is_the_sandbox_s_own_trouble(sandbox: SandboxBackend) -> None:
    result = sandbox.run_command("head -c 200000000 /dev/zero > /tmp/filler")
    assert result.exit_code != 0
    assert "No space left" in result.stderr
    with pytest.raises(RuntimeError, match="No space left"):
        sandbox.write_file("/tmp/more", b"x" * MIB)
    assert sandbox.run_command("rm /tmp/filler; echo ok > /tmp/small; cat /tmp/small").stdout == "ok\n"


def test_too_much_memory_ends_the_sandbox_as_such(driver: Driver, stack: LayerStack) -> None:
    backend = driver.backend(stack, limits=Limits(memory=150 * MIB))
    backend.start()
    # a shell variable of 100 MB and its copies
    with pytest.raises(SandboxOOMError):
        backend.run_command("x=$(head -c 100000000 /dev/zero | tr '\\0' x); y=$x$x$x; sleep 30", timeout=60)
    with pytest.raises(SandboxOOMError):
        backend.run_command("true")
    backend.start()
    assert backend.run_command("echo again").stdout == "again\n"
    backend.close()


def test_too_many_processes_are_refused(sandbox: SandboxBackend, driver: Driver) -> None:
    if sandbox.run_command("ulimit -u").stdout.strip() != str(SMALL.processes):
        pytest.skip("this kernel does not count processes by namespace")
    if os.geteuid() == 0 and driver.degraded:
        pytest.skip("the kernel does not hold host root to a number of processes")
    started = sandbox.run_command("for i in $(seq 200); do sleep 30 & done; echo end", timeout=1.5)
    assert "Resource temporarily unavailable" in started.stderr
    sandbox.start()
    assert sandbox.run_command("echo ok").stdout == "ok\n"


def test_open_files_are_limited(sandbox: SandboxBackend) -> None:
    assert sandbox.run_command("ulimit -n").stdout.strip() == str(SMALL.open_files)


# ---- isolation


def test_the_only_network_is_a_loopback_of_its_own(sandbox: SandboxBackend) -> None:
    devices = sandbox.run_command("tail -n +3 /proc/net/dev | cut -d: -f1 | tr -d ' '").stdout.split()
    assert devices == ["lo"]
    assert sandbox.run_command("exec 3<>/dev/tcp/192.0.2.1/80").exit_code != 0
    assert "refused" in sandbox.run_command("exec 3<>/dev/tcp/127.0.0.1/9").stderr.lower()
    assert "refused" in sandbox.run_command("exec 3<>/dev/tcp/localhost/9").stderr.lower()


def test_nothing_of_the_host_is_visible(sandbox: SandboxBackend, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    assert sandbox.run_command(f"ls {secret}").exit_code != 0
    assert sandbox.run_command("hostname").stdout == "sandbox\n"
    assert sandbox.run_command("ls /sys").stdout == ""
    processes = sandbox.run_command("cat /proc/[0-9]*/cmdline | tr '\\0' '\\n'").stdout
    assert "python" not in processes
    assert str(Path(__file__).parents[2]) not in sandbox.run_command("cat /proc/self/mountinfo").stdout


def test_process_1_cannot_be_looked_into(sandbox: SandboxBackend) -> None:
    for name in ("environ", "maps", "mem", "exe", "root", "fd/0"):
        assert sandbox.run_command(f"head -c 1 /proc/1/{name}").exit_code != 0, name


def test_owners_can_be_changed(sandbox: SandboxBackend, driver: Driver) -> None:
    result = sandbox.run_command("touch /tmp/x && chown 33:33 /tmp/x && stat -c %u:%g /tmp/x")
    if "one user id" in driver.degraded:
        assert result.exit_code != 0
    else:
        assert result.stdout == "33:33\n"


def test_usual_devices_work(sandbox: SandboxBackend) -> None:
    result = sandbox.run_command(
        "echo x > /dev/null; head -c 3 /dev/zero | wc -c; head -c 3 /dev/urandom | wc -c; echo e > /dev/stdout;"
        "echo s > /dev/shm/x; cat <(echo process substitution); ls -d /dev/pts/ptmx /dev/fd/0"
    )
    assert result.stdout == "3\n3\ne\nprocess substitution\n/dev/fd/0\n/dev/pts/ptmx\n", result.stderr


def test_two_sandboxes_do_not_see_each_other(driver: Driver, stack: LayerStack) -> None:
    pair = [driver.backend(stack, limits=SMALL) for _ in range(2)]
    for backend in pair:
        backend.start()
    pair[0].run_command("echo mine > /tmp/x; sleep 60 &")
    assert pair[1].run_command("ls /tmp; cat /proc/[0-9]*/comm").stdout.split() == ["sandbox", "cat"]
    for backend in pair:
        backend.close()


def test_times_are_recorded(sandbox: SandboxBackend, driver: Driver) -> None:
    sandbox.run_command("true")
    summary = driver.timings.summary()
    assert summary["command"]["count"] >= 1
    assert 0 < summary["command"]["p50"] <= summary["command"]["p95"]
    assert summary["start"]["p50"] > 0


def test_a_preparation_is_one_request(sandbox: SandboxBackend) -> None:
    sandbox.run_command("mkdir /folder; ln -s nowhere /dangling")
    sandbox.prepare(
        ["/made/deep", "/workspace"],
        {"/made/wrapper": "#!/bin/sh\necho wrapped", "/made/bytes": b"\xff\0"},
        {"/app": "/workspace", "/folder": "/workspace", "/dangling": "/workspace"},
    )
    assert sandbox.run_command("/made/wrapper; readlink /app /dangling; [ -L /folder ] || echo kept").stdout == (
        "wrapped\n/workspace\n/workspace\nkept\n"
    )
    assert sandbox.read_file("/made/bytes", binary=True) == b"\xff\0"
    with pytest.raises(RuntimeError, match=r"Not a directory|File exists"):
        sandbox.prepare(["/made/wrapper/below"])
    SandboxBackend.prepare(sandbox, ["/plain"], {"/plain/file": "x"}, {"/plain/link": "file"})  # what others inherit
    assert sandbox.run_command("stat -c '%a %N' /plain/*").stdout.split("\n")[0] == "755 '/plain/file'"
