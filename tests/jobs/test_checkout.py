"""A checkout travels as one archive: whole, or not at all, and never outside of its place."""

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from leonardo.errors import InputError
from leonardo.jobs.checkout import pack, unpack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout with a program, a link and a history."""
    made = tmp_path / "checkout"
    (made / "training/__pycache__").mkdir(parents=True)
    (made / ".git").mkdir()
    for name in ("training/run.py", "training/__pycache__/run.pyc", ".git/HEAD"):
        (made / name).write_text(name)
    (made / "training/run.py").chmod(0o775)
    (made / "training/link.py").symlink_to("run.py")
    (made / "rows").symlink_to("training")
    return made


def test_there_and_back(folder: Path, tmp_path: Path) -> None:
    """Without its history, the same bytes each time; an empty folder and what a killed one left are taken away."""
    pack(folder, tmp_path / "a.tar")
    first = (tmp_path / "a.tar").read_bytes()
    pack(folder, tmp_path / "a.tar")
    assert (tmp_path / "a.tar").read_bytes() == first
    (tmp_path / "there").mkdir()
    (tmp_path / ".there.part/training").mkdir(parents=True)
    (tmp_path / ".there.part/training/old").touch()
    unpack(tmp_path / "a.tar", tmp_path / "there")
    found = sorted(path.relative_to(tmp_path / "there").as_posix() for path in (tmp_path / "there").rglob("*"))
    assert found == ["rows", "training", "training/link.py", "training/run.py"]
    assert (tmp_path / "there/rows/link.py").read_text() == "training/run.py"
    assert (tmp_path / "there/training/run.py").stat().st_mode & 0o777 == 0o755
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "checkout", "there"]


def member(
    name: str, kind: bytes = tarfile.REGTYPE, leads: str = "", data: bytes = b"x"
) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, leads, len(data) if kind == tarfile.REGTYPE else 0
    return info, data


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([member("/etc/x")], "/etc/x would lie outside"),
        ([member("a/../../x")], "would lie outside"),
        ([member("training", tarfile.SYMTYPE, "/etc")], "the link training leads outside"),
        ([member("a/b", tarfile.SYMTYPE, "../../etc")], "the link a/b leads outside"),
        ([member("a", tarfile.SYMTYPE, "b"), member("a/x")], "a/x would lie behind a link"),
        ([member("a"), member("b", tarfile.LNKTYPE, "a")], "b is no file, folder or link"),
        ([member("null", tarfile.CHRTYPE)], "null is no file, folder or link"),
        ([member("pipe", tarfile.FIFOTYPE)], "pipe is no file, folder or link"),
    ],
)
def test_what_would_do_harm(tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], words: str) -> None:
    """Is refused in a line, and nothing is left, also of what came before it."""
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for info, data in [member("training/first"), *members]:
            archive.addfile(info, io.BytesIO(data))
    with pytest.raises(InputError) as caught:
        unpack(tmp_path / "a.tar", tmp_path / "there")
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


def test_a_file_with_holes(tmp_path: Path) -> None:
    """Is refused: it would be written out to any size."""
    with (tmp_path / "hole").open("wb") as stream:
        stream.truncate(64 << 20)
    subprocess.run(["tar", "--sparse", "-cf", "a.tar", "hole"], cwd=tmp_path, check=True)
    with pytest.raises(InputError, match="hole is no file, folder or link"):
        unpack(tmp_path / "a.tar", tmp_path / "there")
    assert not list(tmp_path.glob("*there*"))


@pytest.mark.parametrize("data", [b"", b"junk" * 1000, None])
def test_what_is_no_archive(tmp_path: Path, folder: Path, data: bytes | None) -> None:
    """Empty, junk, and one that was cut short."""
    pack(folder, tmp_path / "a.tar")
    whole = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "a.tar").write_bytes(whole[:1800] if data is None else data)
    with pytest.raises(InputError, match="is no archive of a checkout"):
        unpack(tmp_path / "a.tar", tmp_path / "there")
    assert not (tmp_path / "there").exists()
