"""What killed drivers left is found and undone; what belongs to a living one, or to nobody known, is left alone."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from leonardo.errors import InfrastructureError
from leonardo.sandbox import janitor, leases
from leonardo.sandbox.driver import Driver
from leonardo.sandbox.leases import Lease

HOLD_LEASE = """
import subprocess, sys, time
from pathlib import Path
from leonardo.sandbox.leases import Lease
lease = Lease()
place = Path(sys.argv[1])
lease.note_folder(place)
(place / f".layer.partial-{lease.id}-x" / "etc").mkdir(parents=True)
(place / f".layer.tar.partial-{lease.id}-y").touch()
child = subprocess.Popen(["sleep", "3600"], start_new_session=True)
lease.note_process(child.pid)
print(child.pid, flush=True)
time.sleep(600)
"""

Holder = tuple["subprocess.Popen[str]", int]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for layers; leases and temporary folders are the test's own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "layers").mkdir()
    return tmp_path / "layers"


@pytest.fixture
def holder(place: Path) -> Iterator[Holder]:
    """A process that holds a lease, and a child of its that outlives it."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_LEASE, str(place)], stdout=subprocess.PIPE, text=True, env=environment
    )
    child = int(process.stdout.readline())
    yield process, child
    process.kill()
    process.wait()
    process.stdout.close()
    if leases.began(child):
        os.kill(child, signal.SIGKILL)


def _refuse(folder: Path) -> None:
    raise AssertionError(f"{folder} was no driver's")


def test_what_a_killed_driver_left_is_cleaned_and_a_living_one_s_is_not(place: Path, holder: Holder) -> None:
    process, child = holder
    (place / ".other.partial-1").mkdir()
    (place / "layer").mkdir()
    own = Lease()
    own.note_folder(place)
    mine = place / f".x.removed-{own.id}-1"
    mine.mkdir()
    assert janitor.clean(_refuse) == []
    assert len(list(place.iterdir())) == 5
    process.kill()
    process.wait()
    done = janitor.clean(_refuse)
    assert len(done) == 3
    assert f"ended process {child}" in done
    assert sorted(path.name for path in place.iterdir()) == sorted([".other.partial-1", "layer", mine.name])
    assert [path.stem for path in leases.folder().glob("*")] == [own.id]
    assert janitor.clean(_refuse) == []
    own.close()
    own.close()
    assert not list(leases.folder().glob("*"))


def test_a_process_number_used_again_is_left_alone(place: Path) -> None:
    lease = Lease()
    lease._add(leases.Note("process", str(os.getpid()), "1 another-boot"))
    os.close(lease._descriptor)  # as a death does
    assert janitor.clean(_refuse) == []
    assert not list(leases.folder().glob("*"))


def test_what_cannot_be_removed_is_tried_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease()
    lease.note_folder(place)
    (place / f".x.partial-{lease.id}-1").mkdir()
    os.close(lease._descriptor)
    monkeypatch.setattr(janitor.shutil, "rmtree", lambda _: (_ for _ in ()).throw(PermissionError(13, "no", "x")))

    def fail(folder: Path) -> None:
        raise InfrastructureError(f"removing {folder} failed")

    (line,) = janitor.clean(fail)
    assert line.startswith("not yet: removing")
    removed: list[Path] = []
    janitor.clean(removed.append)
    assert len(removed) == 1
    assert not list(leases.folder().glob("*"))


def test_old_temporary_folders_of_ours_go_and_young_ones_stay(place: Path) -> None:
    temporary = Path(tempfile.gettempdir())
    old, young, other = temporary / "leonardo-old", temporary / "leonardo-young", temporary / "else"
    for folder in (old, young, other):
        folder.mkdir()
    for folder in (old, other):
        os.utime(folder, (0, time.time() - janitor.STALE - 60))
    assert janitor.clean(_refuse) == [f"removed {old}"]
    assert young.is_dir()
    assert other.is_dir()


def test_a_lease_stays_small_and_survives_a_line_cut_short(place: Path) -> None:
    lease = Lease()
    for _ in range(3 * leases._MOST_DONE):
        lease.forget(lease.note_process(os.getpid()))
    path = leases.folder() / f"{lease.id}.jsonl"
    assert path.stat().st_size < 200 * leases._MOST_DONE
    lease.note_folder(place)
    os.write(lease._descriptor, b'{"kind": "fol')
    os.close(lease._descriptor)
    with leases.abandoned() as (left,):
        assert leases.Note("folder", str(place)) in left.notes


def test_a_cgroup_that_was_left_is_ended_and_removed(place: Path, tmp_path: Path) -> None:
    root = Path("/sys/fs/cgroup/pids")
    if not os.access(root, os.W_OK) or not (root / "cgroup.procs").exists():
        pytest.skip("no cgroup can be made here")
    group = root / f"leonardo-test-{os.getpid()}"
    (group / "below").mkdir(parents=True)
    child = subprocess.Popen(["sleep", "3600"])
    (group / "below" / "cgroup.procs").write_text(str(child.pid))
    lease = Lease()
    lease.note_cgroup(str(group))
    os.close(lease._descriptor)
    assert janitor.clean(_refuse) == [f"removed cgroup {group}"]
    assert child.wait(5) == -signal.SIGKILL
    assert not group.exists()


def test_a_driver_s_half_made_layers_are_the_janitor_s(driver: Driver, tiny_root_archive: Path, place: Path) -> None:
    lease = Lease()
    lease.note_folder(place)
    driver.unpack(tiny_root_archive, place / "whole")
    (place / "whole").rename(place / f".whole.partial-{lease.id}-1")  # with files of the driver's ids
    os.close(lease._descriptor)
    (line,) = janitor.clean(driver.discard)
    assert line.startswith("removed ")
    assert not list(place.iterdir())
