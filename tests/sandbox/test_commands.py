"""Commands beyond upstream's interface: bytes in and out, a terminal, how they ended, many and much at once."""

import hashlib
import threading
import time
from collections.abc import Iterator

import pytest

from leonardo.sandbox import served
from leonardo.sandbox.driver import LayerStack, Limits
from leonardo.sandbox.namespaces import NamespacesDriver
from leonardo.sandbox.served import ServedBackend
from tests.sandbox.conftest import MIB, SMALL


@pytest.fixture
def roomy(driver: NamespacesDriver, stack: LayerStack) -> Iterator[ServedBackend]:
    """A sandbox that keeps 32 MiB of output."""
    backend = driver.backend(stack, timeout=30, limits=Limits(disk=64 * MIB, memory=1 << 30, output=32 * MIB))
    backend.start()
    yield backend
    backend.close()


# ---- bytes


def test_bytes_go_through_as_they_are(sandbox: ServedBackend) -> None:
    data = bytes(range(256)) * 300
    outcome = sandbox.execute("cat; printf '\\377\\0' >&2", stdin=data)
    assert outcome.outputs == (data, b"\xff\0")
    assert outcome.exit_code == 0


def test_much_input_is_read_and_need_not_be(roomy: ServedBackend) -> None:
    data = b"0123456789abcde\n" * MIB
    digest = hashlib.md5(data).hexdigest().encode()
    assert roomy.execute("md5sum", stdin=data).outputs[0].split()[0] == digest
    assert roomy.execute("true", stdin=data).exit_code == 0


def test_arguments_of_a_megabyte_in_all(sandbox: ServedBackend) -> None:
    piece = "x=$(head -c 65536 /dev/zero | tr '\\0' x); set -- " + "$x " * 16
    result = sandbox.run_command(f"{piece}; env printf %s $@ | wc -c")
    assert result.stdout == f"{MIB}\n", result.stderr


def test_a_hundred_thousand_lines_a_second(roomy: ServedBackend) -> None:
    lines = 1_000_000
    outcome = roomy.execute(f"seq {lines}")
    assert outcome.outputs[0].count(b"\n") == lines
    assert outcome.seconds < lines / 100_000
    # each line by a write of its own
    outcome = roomy.execute("for ((i = 0; i < 100000; i++)); do echo $i; done")
    assert outcome.outputs[0].count(b"\n") == 100_000


# ---- a terminal


def test_a_terminal_where_asked_for(sandbox: ServedBackend) -> None:
    assert sandbox.execute("tty; [ -t 0 ] || echo none").outputs[0].endswith(b"none\n")
    outcome = sandbox.execute(
        "[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo all; echo x > /dev/tty; exit 3", terminal=(24, 80)
    )
    assert outcome.exit_code == 3
    assert len(outcome.outputs) == 1
    assert outcome.outputs[0].split() == [b"all", b"x"]


def test_a_terminal_has_a_name_and_a_size(sandbox: ServedBackend) -> None:
    if sandbox.run_command("command -v tty && command -v stty").exit_code:
        pytest.skip("the host has no tty and stty")
    outcome = sandbox.execute("tty; stty size", terminal=(33, 111))
    name, size = outcome.outputs[0].splitlines()
    assert name.startswith(b"/dev/pts/")
    assert size == b"33 111"


def test_what_is_typed_arrives_and_ends(sandbox: ServedBackend) -> None:
    typed = b"".join(b"line %d\n" % number for number in range(2000))  # more than a terminal takes at once
    outcome = sandbox.execute("cat > /tmp/typed; wc -l < /tmp/typed", stdin=typed, terminal=(24, 80), timeout=10)
    assert outcome.exit_code == 0
    assert sandbox.read_file("/tmp/typed", binary=True) == typed
    assert sandbox.execute("read line; echo $?", terminal=(24, 80), timeout=5).outputs[0].split()[-1] == b"1"


def test_a_terminal_that_hangs_is_ended(sandbox: ServedBackend, monkeypatch: pytest.MonkeyPatch, gone, marker) -> None:
    monkeypatch.setattr(served, "GRACE", 0.5)
    outcome = sandbox.execute(f"trap '' HUP TERM; echo early; sleep {marker}; sleep 1", terminal=(24, 80), timeout=0.5)
    assert (outcome.exit_code, outcome.ended_by) == (124, "timeout")
    assert b"early" in outcome.outputs[0]
    assert gone(marker)
    assert sandbox.run_command("echo alive").stdout == "alive\n"


def test_many_terminals_leave_nothing_open(sandbox: ServedBackend) -> None:
    for _ in range(30):
        assert sandbox.execute("echo x", terminal=(24, 80)).outputs[0] == b"x\r\n"
    assert sandbox.run_command("ls /dev/pts").stdout == "ptmx\n"


def test_a_broken_device_folder_is_the_command_s_trouble(sandbox: ServedBackend) -> None:
    sandbox.run_command("rm -f /dev/ptmx; echo x > /dev/ptmx")
    assert sandbox.execute("true", terminal=(24, 80)).exit_code == 126
    assert sandbox.run_command("echo alive").stdout == "alive\n"


# ---- several at once


def test_commands_at_once_do_not_disturb_each_other(roomy: ServedBackend) -> None:
    outcomes: dict[int, served.CommandOutcome] = {}

    def run(number: int) -> None:
        terminal = (24, 80) if number % 4 == 3 else None
        timeout = 0.5 if number % 4 == 2 else 20
        command = f"for i in $(seq 3000); do echo {number}; done"
        command += "; sleep 30" if number % 4 == 2 else f"; cat; exit {number}"
        outcomes[number] = roomy.execute(command, stdin=b"%d\n" % number, terminal=terminal, timeout=timeout)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(12)]
    begun = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - begun < 15
    for number, outcome in outcomes.items():
        assert set(outcome.outputs[0].split()) == {b"%d" % number}
        assert outcome.exit_code == (124 if number % 4 == 2 else number)
        assert outcome.ended_by == ("timeout" if number % 4 == 2 else "")


# ---- how they ended


def test_what_ended_a_command_is_said(sandbox: ServedBackend, driver: NamespacesDriver) -> None:
    assert sandbox.run_command("true").ended_by == ""
    assert sandbox.run_command("exit 3").ended_by == ""
    assert sandbox.run_command("sleep 5", timeout=0.2).ended_by == "timeout"
    assert sandbox.run_command("head -c 200000000 /dev/zero > /tmp/filler").ended_by == "disk"
    sandbox.run_command("rm /tmp/filler")
    assert sandbox.run_command("exit 3").ended_by == ""


def test_too_many_processes_are_said(sandbox: ServedBackend, driver: NamespacesDriver) -> None:
    groups = driver.groups and "processes" in driver.groups.bounded
    if not groups and sandbox.run_command("ulimit -u").stdout.strip() != str(SMALL.processes):
        pytest.skip("nothing here bounds processes")
    if sandbox.run_command("command -v perl").exit_code:
        pytest.skip("the host has no perl")
    fork = 'for (1..200) { $p = fork; defined $p or die "cannot fork: $!"; if (!$p) { sleep 20; exit } }'
    assert sandbox.run_command(f"perl -e '{fork}'", timeout=10).ended_by == "processes"
