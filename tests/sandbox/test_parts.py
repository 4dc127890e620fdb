"""The small parts: bounded output, timings, id ranges, paths in another root, memory trees, tar's command lines."""

import os
import threading
from pathlib import Path

import pytest

from leonardo.sandbox import identities, layers, mounts, watchdog
from leonardo.sandbox.output import Output
from leonardo.sandbox.server import exit_code_of
from leonardo.sandbox.timings import MOST_KEPT, Timings


@pytest.mark.parametrize("piece", [1, 7, 1000, 100_000])
def test_output_keeps_head_and_tail(piece: int) -> None:
    data = b"".join(b"%06d\n" % number for number in range(20_000))
    output = Output(1000)
    for start in range(0, len(data), piece):
        output.add(data[start : start + piece])
    head, marker, tail = output.value().partition(b"\n[... 139000 bytes left out ...]\n")
    assert marker
    assert head == data[:500]
    assert tail == data[-500:]


def test_output_below_its_limit_is_whole() -> None:
    output = Output(1000)
    output.add(b"a" * 999)
    output.add(b"b")
    assert output.value() == b"a" * 999 + b"b"
    output.add(b"c")
    assert b"1 bytes left out" in output.value()


def test_exit_codes_of_signals() -> None:
    assert exit_code_of(9) == 137
    assert exit_code_of(3 << 8) == 3


def test_timings_are_bounded_and_exact() -> None:
    timings = Timings()

    def record() -> None:
        for value in range(1, MOST_KEPT + 1):
            timings.record("command", value)

    threads = [threading.Thread(target=record) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert timings.summary()["command"]["count"] == 3 * MOST_KEPT
    timings = Timings()
    for value in range(1, 101):
        timings.record("reset", value)
    assert timings.summary() == {"reset": {"count": 100, "p50": 50, "p95": 95}}
    with pytest.raises(ValueError), timings.measure("failed"):
        raise ValueError
    assert "failed" not in timings.summary()


def test_subordinate_ids_are_found_by_name_and_number(tmp_path: Path) -> None:
    table = tmp_path / "subuid"
    table.write_text("# comment\nann:100000:65536\n1007:300000:10\nbad line\nann:x:1\nann:900000:70000\n")
    assert identities.subordinate(table, "ann", 1001) == (900_000, 70_000)
    assert identities.subordinate(table, "bob", 1007) == (300_000, 10)
    assert identities.subordinate(table, "eve", 1) is None
    assert identities.subordinate(tmp_path / "absent", "ann", 1001) is None


def test_root_is_never_root_inside() -> None:
    if os.geteuid():
        pytest.skip("not root")
    try:
        found = identities.full()
    except identities.NoRangeError as error:
        pytest.skip(str(error))
    assert found.degraded or found.root[0] > 0


def test_a_path_is_resolved_inside_its_root(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "run" / "real").mkdir(parents=True)
    (root / "var").mkdir()
    (root / "var" / "run").symlink_to("/run")
    (root / "up").symlink_to("../../../../run")
    (root / "loop").symlink_to("loop")
    for path, expected in {
        "/var/run/real/x": "/run/real/x",
        "/up/real": "/run/real",
        "/../../etc/x": "/etc/x",
        "/not/there": "/not/there",
        "/loop/x": "/loop/x",
    }.items():
        assert mounts.resolve(str(root), path) == f"{root}{expected}"


def test_memory_is_summed_over_descendants() -> None:
    processes = {1: watchdog.Usage(0, 1), 2: watchdog.Usage(1, 1), 3: watchdog.Usage(2, 1), 4: watchdog.Usage(0, 1)}
    members = watchdog.trees(processes, [1, 4, 9])
    assert {root: sorted(found) for root, found in members.items()} == {1: [1, 2, 3], 4: [4], 9: [9]}


def test_memory_of_this_process_is_seen() -> None:
    ballast = b"x" * (64 << 20)
    own = os.getpid()
    assert watchdog.scan()[own].resident > len(ballast)
    assert watchdog.look({own: watchdog.Bounds(32 << 20, 1000)}).over == {own: "memory"}
    assert watchdog.look({own: watchdog.Bounds(1 << 40, 1000)}).over == {}
    assert watchdog.look({own: watchdog.Bounds(1 << 40, 0)}).over == {own: "processes"}


def test_the_less_is_left_the_sooner_is_the_next_look() -> None:
    assert watchdog.Look({}, 1 << 40).pause(0.001) == watchdog.LONGEST_PAUSE
    assert watchdog.Look({}, watchdog.FASTEST_GROWTH // 10).pause(0.001) == pytest.approx(0.1)
    assert watchdog.Look({}, 0).pause(0.001) == watchdog.SHORTEST_PAUSE
    assert watchdog.Look({}, 0).pause(0.1) == pytest.approx(0.4)  # many processes to look at: not all the time
    for headroom in (0, 1 << 40):  # and never so long that what fills the memory is gone before the next look
        assert watchdog.Look({}, headroom).pause(60.0) == watchdog.MOST_PAUSE


@pytest.mark.parametrize(
    ("start", "program"),
    [(b"\x1f\x8b\x08\0", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ\0", "xz"), (b"./etc/", None)],
)
def test_archives_say_how_they_are_compressed(start: bytes, program: str | None) -> None:
    command = layers.unpack_command("/x", start, keep_owners=True)
    assert (f"--use-compress-program={program}" in command) == bool(program)
    assert "--same-owner" in command
    assert "--no-same-owner" in layers.unpack_command("/x", start, keep_owners=False)
