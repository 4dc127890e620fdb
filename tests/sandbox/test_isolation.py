"""Which of the kernel's interfaces a sandbox reaches, decided one by one (docs/sandbox.md has the table)."""

import os
import platform
import statistics
import time
from pathlib import Path

import pytest

from leonardo.sandbox.driver import LayerStack
from leonardo.sandbox.namespaces import NamespacesDriver
from leonardo.sandbox.served import ServedBackend
from leonardo.sandbox.systemcalls import NUMBERS

EPERM, ENOSYS, EAFNOSUPPORT, EPROTONOSUPPORT = 1, 38, 97, 93


def _errors(sandbox: ServedBackend, calls: list[tuple[str, str]]) -> dict[str, int]:
    """Name -> error number (0: the call was done), for calls made by perl: the name and its arguments."""
    if sandbox.run_command("command -v perl").exit_code:
        pytest.skip("the host has no perl")
    if platform.machine() != "x86_64":
        pytest.skip("written for x86-64")
    # perl passes on only what is no constant
    script = "sub v { my $value = shift; $value } " + "".join(
        f"$! = 0; $r = syscall({NUMBERS[name][0]}{', ' if arguments else ''}{arguments}); "
        f'print "{name} ", ($r == -1 ? $!+0 : 0), "\\n"; '
        for name, arguments in calls
    )
    sandbox.write_file("/tmp/calls", script)
    result = sandbox.run_command("perl /tmp/calls")
    assert result.exit_code == 0, result
    return {line.split()[0]: int(line.split()[1]) for line in result.stdout.splitlines()}


def test_calls_that_are_refused(sandbox: ServedBackend) -> None:
    refused = _errors(
        sandbox,
        [
            ("bpf", "0, 0, 0"),
            ("perf_event_open", "0, 0, -1, -1, 0"),
            ("userfaultfd", "1"),
            ("keyctl", "0, -3, 0"),
            ("add_key", 'v("user"), v("x"), v("x"), 1, -3'),
            ("request_key", 'v("user"), v("x"), 0, -3'),
            ("kexec_load", "0, 0, 0, 0"),
            ("init_module", "0, 0, 0"),
            ("finit_module", "-1, 0, 0"),
            ("delete_module", 'v("x"), 0'),
            ("settimeofday", 'v(pack("qq", 1, 1)), 0'),
            ("clock_settime", '0, v(pack("qq", 1, 1))'),
            ("mount", 'v("x"), v("/tmp"), v("tmpfs"), 0, 0'),
            ("umount2", 'v("/proc"), 2'),
            ("pivot_root", 'v("/"), v("/")'),
            ("fsopen", 'v("tmpfs"), 0'),
            ("open_tree", '-100, v("/"), 1'),
            ("setns", "-1, 0"),
            ("syslog", "10, 0, 0"),
            ("swapoff", 'v("/x")'),
            ("open_by_handle_at", "-1, 0, 0"),
            ("unshare", "0x10000000"),
            ("clone", "0x10000011, 0, 0, 0, 0"),
        ],
    )
    assert set(refused.values()) == {EPERM}, refused


def test_calls_that_look_as_if_the_kernel_had_none(sandbox: ServedBackend) -> None:
    assert set(_errors(sandbox, [("io_uring_setup", "1, 0"), ("clone3", "0, 0")]).values()) == {ENOSYS}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ("2, 1, 0", 0),
        ("10, 1, 0", 0),
        ("1, 1, 0", 0),
        ("2, 3, 1", 0),  # ping's
        ("16, 3, 0", 0),
        ("16, 3, 12", EPROTONOSUPPORT),
        ("17, 3, 768", EAFNOSUPPORT),
        ("38, 5, 0", EAFNOSUPPORT),
        ("40, 1, 0", EAFNOSUPPORT),
    ],
    ids=["ipv4", "ipv6", "unix", "raw-icmp", "netlink-route", "netfilter", "packet", "ciphers", "vsock"],
)
def test_sockets(sandbox: ServedBackend, arguments: str, error: int) -> None:
    assert _errors(sandbox, [("socket", arguments)]) == {"socket": error}


def test_setuid_programs_work(sandbox: ServedBackend, driver: NamespacesDriver) -> None:
    """Tasks use su and sudo: no_new_privs, which filters usually come with, would break them."""
    if "one user id" in driver.degraded:
        pytest.skip(driver.degraded)
    assert "NoNewPrivs:\t0" in sandbox.run_command("cat /proc/self/status").stdout
    _errors(sandbox, [("prlimit64", "0, 7, 0, 0")])  # skips where there is no perl
    sandbox.run_command("cp /usr/bin/id /tmp/id; chmod 4755 /tmp/id")
    as_other = """perl -e '$) = "33 33"; $( = 33; $< = $> = 33; exec @ARGV' """
    assert sandbox.run_command(f"{as_other} id -u").stdout == "33\n"
    assert "euid=0(root)" in sandbox.run_command(f"{as_other} /tmp/id").stdout
    assert sandbox.run_command(f"{as_other} cat /root/x").exit_code != 0


def test_everything_in_a_sandbox_is_filtered(sandbox: ServedBackend) -> None:
    seen = sandbox.run_command("grep -h Seccomp: /proc/[0-9]*/status").stdout.split()
    assert set(seen) == {"Seccomp:", "2"}


def test_kernel_settings_cannot_be_written(sandbox: ServedBackend) -> None:
    names = (
        "kernel/core_pattern",
        "kernel/hostname",
        "vm/drop_caches",
        "net/ipv4/ip_forward",
        "user/max_user_namespaces",
    )
    before = {name: _host_value(name) for name in names}
    for name in names:
        assert sandbox.run_command(f"echo 1 > /proc/sys/{name}").exit_code != 0, name
    for name in ("sysrq-trigger", "irq/0/smp_affinity", "irq/default_smp_affinity", "mtrr"):
        sandbox.run_command(f"echo 3 > /proc/{name}")
    assert {name: _host_value(name) for name in names} == before


def _host_value(name: str) -> str:
    try:
        return Path("/proc/sys", name).read_text()
    except OSError:
        return ""


def test_kernel_memory_and_log_and_keys_cannot_be_read(sandbox: ServedBackend) -> None:
    for name in ("kcore", "kmsg", "keys", "key-users"):
        assert sandbox.run_command(f"timeout 1 head -c 1 /proc/{name}").stdout == "", name
    assert sandbox.run_command("ls -A /sys").stdout == ""
    addresses = sandbox.run_command("head -n 1 /proc/kallsyms | cut -d' ' -f1").stdout.strip()
    assert set(addresses) <= {"0"}


def test_host_sockets_and_devices_are_absent(sandbox: ServedBackend) -> None:
    assert sandbox.run_command("find / -xdev -type s -o -path /proc -prune -type s").stdout == ""
    for name in ("mem", "kmsg", "port", "vsock", "fuse", "kvm", "loop-control", "console", "net/tun"):
        assert sandbox.run_command(f"ls /dev/{name}").exit_code != 0, name


def test_the_filter_costs_less_than_a_tenth_of_a_millisecond_a_command(
    driver: NamespacesDriver, stack: LayerStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a child of this process, fork and exec of a program with the filter and without, in turns."""
    from leonardo.sandbox import seccomp

    def measure(filtered: bool) -> float:
        read, write = os.pipe()
        child = os.fork()
        if not child:
            try:
                if filtered:
                    seccomp.install()
                times = []
                for _ in range(40):
                    begun = time.perf_counter()
                    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
                    times.append(time.perf_counter() - begun)
                os.write(write, str(min(times)).encode())
            finally:
                os._exit(0)
        os.close(write)
        os.waitpid(child, 0)
        with os.fdopen(read) as stream:
            return float(stream.read())

    if os.geteuid():
        pytest.skip("a filter without no_new_privs needs a privilege outside of sandboxes: run as root")
    plain, filtered = ([measure(kind) for _ in range(5)] for kind in (False, True))
    assert statistics.median(filtered) - statistics.median(plain) < 100e-6
