"""A job's scratch: whose it is, and that what is removed is all of it and nothing else."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from leonardo.jobs.arrive import shortcomings
from leonardo.jobs.scratch import make, remove

NOBODY = 65534


@pytest.fixture
def place() -> Iterator[Path]:
    """Where scratch is, seen by a user who is not root."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = os.geteuid() == 0
        if root:
            os.chown(folder, NOBODY, NOBODY)
            os.seteuid(NOBODY)
        try:
            yield Path(folder)
        finally:
            if root:
                os.seteuid(0)


def test_folders_that_may_not_be_entered_and_deep_ones_go_too(place: Path) -> None:
    """Links are not followed."""
    (place / "others").mkdir(mode=0o555)
    (place / "file").touch(mode=0o444)
    make(place / "l1")
    (place / "l1/to").symlink_to("../others")
    (place / "l1/closed").mkdir()
    (place / "l1/closed/in").mkdir(mode=0)
    (place / "l1/closed/to").symlink_to("../../file")
    (place / "l1/closed").chmod(0o555)
    deep = os.open(place / "l1", os.O_RDONLY)
    for _ in range(1500):  # deeper than Python may call, and than a path may be long
        os.mkdir("deep", dir_fd=deep)
        inner = os.open("deep", os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = inner
    os.close(deep)
    (place / "l1").chmod(0)
    assert remove(place / "l1") == ""
    assert sorted(path.name for path in place.iterdir()) == ["file", "others"]
    assert [(place / name).stat().st_mode & 0o777 for name in ("file", "others")] == [0o444, 0o555]
    assert remove(place / "l1") == ""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root: a file of another user")
def test_what_stays_is_said_and_keeps_its_mark(place: Path) -> None:
    make(place / "l1")
    (place / "l1/in").mkdir()
    os.seteuid(0)
    (place / "l1/in/of-root").mkdir()
    (place / "l1/in/of-root/file").touch()
    os.seteuid(NOBODY)
    assert "of-root' (Operation not permitted)" in remove(place / "l1")
    assert (place / "l1/.leonardo-job").is_file() and len(list((place / "l1").rglob("of-root/file"))) == 1


def test_what_is_mounted_in_it_is_not_touched(tmp_path: Path) -> None:
    """Though it is of the same file system."""
    unshare = ["unshare", "--mount", "--user", "--map-root-user"]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces of users")
    make(tmp_path / "l1")
    for name in ("l1/a/in", "l1/b", "victim"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "victim/file").touch()
    (tmp_path / "victim").chmod(0o555)
    (tmp_path / "l1/file").touch()
    (tmp_path / "theirs").write_text("theirs")
    program = "import pathlib; from leonardo.jobs.scratch import remove; print(remove(pathlib.Path.cwd() / 'l1'))"
    script = 'mount --bind victim l1/a/in && mount --bind theirs l1/file && exec "$@"'
    command = [*unshare, "sh", "-c", script, "sh", sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "(Device or resource busy)" in done.stdout, done.stderr
    assert (tmp_path / "victim").stat().st_mode & 0o777 == 0o555 and (tmp_path / "victim/file").exists()
    assert (tmp_path / "theirs").read_text() == "theirs"
    assert (tmp_path / "l1/.leonardo-job").is_file() and not (tmp_path / "l1/b").exists()
    assert remove(tmp_path / "l1") == ""


@pytest.mark.parametrize("link", [False, True])
@pytest.mark.skipif(os.getuid() != 0, reason="needs root: a folder of another user")
def test_scratch_that_another_made_is_not_taken(place: Path, link: bool) -> None:
    """Nor removed; what is this user's is closed to others."""
    os.seteuid(0)
    scratch = place / "l1"
    if link:
        (place / "of-user").mkdir()
        os.chown(place / "of-user", NOBODY, NOBODY)
        scratch.symlink_to("of-user")
    else:
        scratch.mkdir()
        scratch.chmod(0o777)
    os.seteuid(NOBODY)
    assert list(shortcomings({}, scratch)) == [f"{scratch} cannot be made (somebody else made it)"]
    assert remove(scratch) == f"{scratch} (somebody else made it)" and scratch.exists() and not any(scratch.iterdir())
    (place / "l2").mkdir(mode=0o777)
    assert not list(shortcomings({}, place / "l2")) and (place / "l2").stat().st_mode & 0o777 == 0o700
