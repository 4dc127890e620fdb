import io
import tarfile
from pathlib import Path

import pytest

from leonardo.errors import InputError
from leonardo.tasks import task_data
from leonardo.tasks.task_data import read_task_data


def make_tarball(path: Path, *members: tuple[str, bytes | str]) -> Path:
    """A member's content as bytes makes a file, as text a symbolic link to it."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                archive.addfile(member)
            else:
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


def test_a_tarball_and_its_folder_read_the_same(tmp_path: Path) -> None:
    tarball = make_tarball(tmp_path / "d.tar.gz", ("./t1/tests/test.sh", b"1"), ("t2/tests/test.sh", b"2"))
    for task_id, content in (("t1", b"1"), ("t2", b"2")):
        (tmp_path / "d" / task_id / "tests").mkdir(parents=True)
        (tmp_path / "d" / task_id / "tests" / "test.sh").write_bytes(content)
    assert read_task_data(tarball, ["t1", "t2"]) == read_task_data(tmp_path / "d", ["t1", "t2"])
    assert read_task_data(tarball, ["t1"])["t1"].below("tests") == {"test.sh": b"1"}


def test_only_the_tasks_asked_for_are_read(tmp_path: Path) -> None:
    tarball = make_tarball(tmp_path / "d.tar.gz", ("t1/a", b"1"), ("t2/a", b"2"))
    assert list(read_task_data(tarball, ["t2", "t3"])) == ["t2"]


@pytest.mark.parametrize("name", ["../t1/x", "/etc/passwd", "t1/../../x"])
def test_a_member_that_points_outside_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="points out of the archive"):
        read_task_data(make_tarball(tmp_path / "d.tar.gz", (name, b"x")), ["t1"])


def test_a_link_in_a_tarball_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no plain file"):
        read_task_data(make_tarball(tmp_path / "d.tar.gz", ("t1/tests/test.sh", "/etc/passwd")), ["t1"])


def test_a_link_that_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d" / "t1").mkdir(parents=True)
    (tmp_path / "secret").write_text("x")
    (tmp_path / "d" / "t1" / "a").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match="leaves the task's folder"):
        read_task_data(tmp_path / "d", ["t1"])


def test_a_tarball_cut_short_is_refused(tmp_path: Path) -> None:
    tarball = make_tarball(tmp_path / "d.tar.gz", ("t1/a", bytes(range(256)) * 400))
    tarball.write_bytes(tarball.read_bytes()[:-200])
    with pytest.raises(InputError, match="cannot be read as a tarball"):
        read_task_data(tarball, ["t1"])


def test_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_data, "MAXIMUM_BYTES", 1000)
    with pytest.raises(InputError, match="holds more than"):
        read_task_data(make_tarball(tmp_path / "d.tar.gz", ("t1/a", bytes(600)), ("t1/b", bytes(600))), ["t1"])


def test_neither_folder_nor_tarball(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="neither a folder nor a tarball"):
        read_task_data(tmp_path / "absent", ["t1"])
