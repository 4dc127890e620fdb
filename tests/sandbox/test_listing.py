import os
from pathlib import Path

import pytest

from leonardo.sandbox.listing import listing


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "folder").mkdir(parents=True)
    (root / "folder" / "file").write_text("content")
    (root / "link").symlink_to("folder/file")
    os.mkfifo(root / "pipe")
    (root / os.fsdecode(b"odd\n\xff")).write_text("")
    return root


def lines(root: Path) -> list[list[str]]:
    return [line.split("\t") for line in listing(os.fsencode(root)).decode().splitlines()]


def test_every_entry_has_its_line(tree: Path) -> None:
    assert [fields[1] for fields in lines(tree)] == ["folder", "folder", "file", "link", "file", "pipe"]
    by_name = {fields[0].removeprefix(str(tree)): fields for fields in lines(tree)}
    assert by_name["/link"][6] == "folder/file"
    assert by_name["/folder/file"][4] == "7"
    assert by_name[r"/odd\n\xff"][4] == "0"


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "folder" / "file").chmod(0o600),
        lambda root: os.utime(root / "folder" / "file", ns=(0, 1)),
        lambda root: os.utime(root / "link", ns=(0, 1), follow_symlinks=False),
        lambda root: os.setxattr(root / "folder" / "file", "user.note", b"x"),
        lambda root: (root / "folder" / "new").mkdir(),
        lambda root: (root / "pipe").unlink(),
    ],
)
def test_a_change_shows(tree: Path, change) -> None:
    before = lines(tree)
    change(tree)
    assert lines(tree) != before


def test_content_of_the_same_size_and_time_shows(tree: Path) -> None:
    path = tree / "folder" / "file"
    before, status = lines(tree), path.stat()
    path.write_text("CONTENT")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert [new[0] for old, new in zip(before, lines(tree), strict=True) if old != new] == [str(path)]


def test_holes_are_not_read_and_do_not_count(tmp_path: Path) -> None:
    """The second file would take minutes to read; the third holds the same as the first, without the hole."""
    names = ("sparse", "endless", "dense", "moved")
    sparse, endless, dense, moved = (tmp_path / name for name in names)
    for path, start in ((sparse, 3 << 20), (endless, 3 << 20), (moved, 4 << 20)):
        path.write_bytes(b"")
        os.truncate(path, 5 << 20)
        with path.open("r+b") as stream:
            stream.seek(start)
            stream.write(b"content")
    os.truncate(endless, 1 << 40)
    dense.write_bytes(sparse.read_bytes())
    held = {Path(fields[0]).name: fields[6] for fields in lines(tmp_path)}
    assert held["sparse"] == held["dense"] == held["endless"]
    assert held["moved"] != held["sparse"]
