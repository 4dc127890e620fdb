import pytest

from leonardo.assets.failures import classify, classify_run, without_hosts, without_secrets
from leonardo.errors import FailureClass
from leonardo.sandbox.driver import SetUpResult

APT_OFFLINE = (
    "Err:1 http://mirror.example bookworm InRelease\n  Temporary failure resolving 'mirror.example'\n"
    "W: Failed to fetch http://mirror.example/dists/bookworm/InRelease  Temporary failure resolving 'mirror.example'\n"
    "E: Unable to locate package jq\n"
)


@pytest.mark.parametrize(
    ("result", "failure"),
    [
        (SetUpResult(100, APT_OFFLINE, 1), FailureClass.MIRROR),
        (SetUpResult(1, "WARNING: Retrying after NewConnectionError\nERROR: No matching\n", 1), FailureClass.MIRROR),
        (SetUpResult(6, "curl: (6) Could not resolve host: example\n", 1), FailureClass.MIRROR),
        (SetUpResult(1, "E: Unable to locate package no-such\n", 1), FailureClass.SET_UP),
        (SetUpResult(1, "cp: error writing '/x': No space left on device\n", 1), FailureClass.SPACE),
        (SetUpResult(1, "short", 1, disk_full=True), FailureClass.SPACE),
        (SetUpResult(124, "x", 1, timed_out=True), FailureClass.SET_UP_TIMEOUT),
        (SetUpResult(1, "mount: /mnt: Operation not permitted\n", 1), FailureClass.PRIVILEGE),
        (SetUpResult(32, "mount: /mnt: permission denied.\n  dmesg(1) may have more\n", 1), FailureClass.PRIVILEGE),
        (SetUpResult(1, 'sysctl: permission denied on key "vm.x"\n', 1), FailureClass.PRIVILEGE),
        (SetUpResult(2, "cannot create /proc/sys/vm/x: Read-only file system\n", 1), FailureClass.PRIVILEGE),
        (SetUpResult(1, "chown: changing ownership of '/f': Invalid argument\n", 1), FailureClass.PRIVILEGE),
        (SetUpResult(137, "the sandbox used more than its 64 MiB of memory and was ended", 1), FailureClass.SPACE),
        (SetUpResult(127, "set-up: 1: systemctl: not found\n", 1), FailureClass.SERVICE),
        (SetUpResult(1, "demo: unrecognized service\n", 1), FailureClass.SERVICE),
        (SetUpResult(7, "curl: (7) Failed to connect to localhost port 80 after 0 ms: x\n", 1), FailureClass.SERVICE),
        (SetUpResult(2, "psql: error: could not connect to server: Connection refused\n", 1), FailureClass.SERVICE),
        (SetUpResult(1, "nginx: [emerg] bind() to 0.0.0.0:80 failed\n", 1), FailureClass.PORT),
        (SetUpResult(1, "OSError: [Errno 98] Address already in use\n", 1), FailureClass.PORT),
        (SetUpResult(1, "socket: Address family not supported by protocol\n", 1), FailureClass.KERNEL_FEATURE),
        (SetUpResult(1, "setfacl: /f: Operation not supported\n", 1), FailureClass.KERNEL_FEATURE),
        (SetUpResult(127, "sh: 3: pip3: not found\n", 1), FailureClass.SET_UP),
        (SetUpResult(0, APT_OFFLINE + "done\n", 1), FailureClass.MIRROR),
    ],
)
def test_class_and_one_line(result: SetUpResult, failure: FailureClass) -> None:
    found = classify(result, 60)
    assert found is not None
    assert found[0] is failure
    assert found[1]
    assert "\n" not in found[1]


def test_success_may_speak_of_failures() -> None:
    log = "curl: (6) Could not resolve host: telemetry.example\nW: some warning\nSetting up jq\n"
    assert classify(SetUpResult(0, log, 1), 60) is None


@pytest.mark.parametrize(
    ("output", "failure"),
    [
        ("curl: (6) Could not resolve host: example\n", FailureClass.NETWORK),
        (
            "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>",
            FailureClass.NETWORK,
        ),
        ("E: Unable to locate package jq\n", FailureClass.NETWORK),
        ("ERROR: No matching distribution found for requests\n", FailureClass.NETWORK),
        ("OSError: [Errno 98] Address already in use\n", FailureClass.PORT),
        ("mount: /mnt: permission denied.\n", FailureClass.PRIVILEGE),
        ("cp: error writing '/x': No space left on device\n", FailureClass.SPACE),
        ("AssertionError: expected 3, got 4\n", None),
        ("E       ConnectionRefusedError: [Errno 111] Connection refused\n", None),
        ("", None),
    ],
)
def test_what_a_script_missed_in_a_sandbox(output: str, failure: FailureClass | None) -> None:
    assert classify_run(output) is failure


def test_no_host_and_no_account_gets_into_a_reason() -> None:
    log = APT_OFFLINE.replace("http://", "http://me:secret@")
    found = classify(SetUpResult(100, log, 1), 60)
    assert found is not None
    assert "mirror.example" not in found[1]
    assert "secret" not in found[1]
    assert without_hosts('Get "https://a.example/v2/": lookup a.example on 10.1.2.3:53: no such host') == (
        'Get "(address)": lookup (host) on (address): no such host'
    )
    assert "secret" not in without_secrets(log)
    assert "mirror.example" in without_secrets(log)
