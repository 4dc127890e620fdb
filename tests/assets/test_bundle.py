import io
import json
import shutil
import subprocess
import tarfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from leonardo.assets.bundle import CONTENTS, read_bundle, write_bundle
from leonardo.assets.manifest import ManifestEntry
from leonardo.assets.plan import BuildSettings
from leonardo.assets.progress import BuildProgress
from leonardo.assets.store import AssetStore
from leonardo.errors import InfrastructureError, InputError
from leonardo.files import sha256_bytes
from leonardo.sandbox.driver import Driver
from leonardo.site import Site
from leonardo.tasks.task import Task
from tests.assets.conftest import package_site_in

TASKS = [
    Task(name, "Do it.", f"Bootstrap: docker\nFrom: tiny:1\n{f'%post{chr(10)}{script}{chr(10)}' if script else ''}", {})
    for name, script in {
        "t1": "apt-get install -y python3 python3-pip\necho 1 > /one",
        "t2": "head -c 400000 /dev/urandom > /large",
        "t3": "",
    }.items()
]


@pytest.fixture(scope="module")
def built(
    tmp_path_factory: pytest.TempPathFactory, package_root_archive: Path, driver: Driver
) -> tuple[AssetStore, list[ManifestEntry]]:
    """A store with the tasks, which tests only read."""
    folder = tmp_path_factory.mktemp("bundles")
    store = AssetStore(folder / "assets", driver, package_site_in(folder, package_root_archive), timeout=20)
    return store, store.build(TASKS)


@pytest.fixture
def elsewhere(package_site: Site, driver: Driver) -> AssetStore:
    """A store where there is no network."""
    settings = BuildSettings(timeout=20, offline=True)
    return AssetStore(package_site.cache / "elsewhere", driver, package_site, settings=settings)


Built = tuple[AssetStore, list[ManifestEntry]]


def test_there_and_back(built: Built, elsewhere: AssetStore, tmp_path: Path, driver: Driver) -> None:
    store, entries = built
    members = write_bundle(store, entries, tmp_path / "b.tar")
    assert not (tmp_path / "b.tar.part").exists()
    brought = read_bundle(elsewhere, tmp_path / "b.tar")
    assert brought.members == len(members) == brought.new + 2
    assert brought.tasks == 3
    assert [entry.prepared for entry in elsewhere.build(TASKS)] == [entry.prepared for entry in entries]
    assert elsewhere.catalogue.builds(entries[0].set_up.key) == 0
    with elsewhere.named.using(entries[0].prepared) as state, closing(driver.backend(state.stack)) as backend:
        backend.start()
        assert backend.run_command("cat /one /usr/share/packages/python3").stdout == "1\npython3\n"
    assert read_bundle(elsewhere, tmp_path / "b.tar").new == 0


def test_one_at_a_time(built: Built, tmp_path: Path) -> None:
    store, entries = built

    class Second(BuildProgress):
        def start(self, total: int, what: str = "") -> None:
            with pytest.raises(InputError, match=r"b.tar: another process works there"):
                write_bundle(store, entries, tmp_path / "b.tar")

    write_bundle(store, entries, tmp_path / "b.tar", Second())


def test_the_same_selection_gives_the_same_archive(built: Built, tmp_path: Path) -> None:
    store, entries = built
    write_bundle(store, entries, tmp_path / "a.tar")
    write_bundle(store, entries[::-1], tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_a_bundle_that_is_there_is_left_and_a_damaged_one_is_told(built: Built, tmp_path: Path) -> None:
    store, entries = built
    write_bundle(store, entries, tmp_path / "a.tar")
    before = (tmp_path / "a.tar").stat()
    write_bundle(store, entries, tmp_path / "a.tar")
    assert (tmp_path / "a.tar").stat().st_ino == before.st_ino
    write_bundle(store, entries[:1], tmp_path / "a.tar")
    assert (tmp_path / "a.tar").stat().st_ino != before.st_ino
    data = bytearray((tmp_path / "a.tar").read_bytes())
    data[-20_000] ^= 1
    (tmp_path / "a.tar").write_bytes(data)
    with pytest.raises(InputError, match=r"was damaged .* and is removed"):
        write_bundle(store, entries[:1], tmp_path / "a.tar")


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.95, 1.0])
def test_writing_goes_on_where_it_was(built: Built, tmp_path: Path, part: float) -> None:
    store, entries = built
    write_bundle(store, entries, tmp_path / "a.tar")
    data = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "b.tar.part").write_bytes(data[: int(len(data) * part)])
    write_bundle(store, entries, tmp_path / "b.tar")
    assert (tmp_path / "b.tar").read_bytes() == data


def test_a_part_of_another_selection_is_begun_anew(built: Built, tmp_path: Path) -> None:
    store, entries = built
    write_bundle(store, entries[:1], tmp_path / "a.tar")
    (tmp_path / "a.tar").rename(tmp_path / "b.tar.part")
    members = write_bundle(store, entries, tmp_path / "b.tar")
    with tarfile.open(tmp_path / "b.tar") as archive:
        assert len(archive.getnames()) == len(members) + 1


def test_a_damaged_part_is_told_and_not_named(built: Built, tmp_path: Path) -> None:
    store, entries = built
    write_bundle(store, entries, tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar") as archive:
        layer = next(member for member in archive if member.name.startswith("layers/") and member.size > 10_000)
    data = bytearray((tmp_path / "a.tar").read_bytes())
    data[layer.offset_data + layer.size // 2] ^= 1
    (tmp_path / "b.tar.part").write_bytes(data)
    with pytest.raises(InputError, match=r"was damaged .* and is removed"):
        write_bundle(store, entries, tmp_path / "b.tar")
    assert not (tmp_path / "b.tar").exists()
    write_bundle(store, entries, tmp_path / "b.tar")


@pytest.mark.parametrize("part", [0.2, 0.6, 0.99])
def test_a_truncated_bundle_brings_what_is_whole(
    built: Built, elsewhere: AssetStore, tmp_path: Path, part: float
) -> None:
    store, entries = built
    write_bundle(store, entries, tmp_path / "a.tar")
    data = (tmp_path / "a.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as archive:  # not in the padding at the end
        end = archive.getmembers()[-1].offset_data
    (tmp_path / "b.tar").write_bytes(data[: int(end * part)])
    with pytest.raises(InputError, match=r"\d+ of \d+ members are in the store.* goes on from there"):
        read_bundle(elsewhere, tmp_path / "b.tar")
    for digest in elsewhere.archives.stored():
        assert elsewhere.archives.is_whole(digest)
    there = len(elsewhere.archives.stored())
    assert read_bundle(elsewhere, tmp_path / "a.tar").new >= 1
    assert len(elsewhere.archives.stored()) >= there
    assert [entry.prepared for entry in elsewhere.build(TASKS)] == [entry.prepared for entry in entries]


def test_a_damaged_member_is_not_taken(built: Built, elsewhere: AssetStore, tmp_path: Path) -> None:
    store, entries = built
    write_bundle(store, entries, tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar") as archive:
        members = archive.getmembers()
    for member in members[1:]:
        data = bytearray((tmp_path / "a.tar").read_bytes())
        data[member.offset_data + member.size // 2] ^= 1
        (tmp_path / "b.tar").write_bytes(data)
        with pytest.raises(InputError, match=f"{member.name} is damaged"):
            read_bundle(elsewhere, tmp_path / "b.tar")
    assert all(map(elsewhere.archives.is_whole, elsewhere.archives.stored()))


@pytest.mark.parametrize("name", ["../../outside", "/outside"])
def test_nothing_gets_out_of_the_store(elsewhere: AssetStore, tmp_path: Path, name: str) -> None:
    contents = f'{{"version": 1, "members": [{{"name": "{name}", "size": 1, "digest": "x"}}]}}'.encode()
    with tarfile.open(tmp_path / "b.tar", "w") as archive:
        for member_name, data in ((CONTENTS, contents), (name, b"x")):
            member = tarfile.TarInfo(member_name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    with pytest.raises(InputError, match="outside of the store"):
        read_bundle(elsewhere, tmp_path / "b.tar")


def _archive(path: Path, *members: tuple[str, bytes | str]) -> Path:
    """Files, and symbolic or hard links where the text is ``link:`` or ``hard:`` and where it leads."""
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            if isinstance(data, str):
                kind, _, info.linkname = data.partition(":")
                info.type = tarfile.SYMTYPE if kind == "link" else tarfile.LNKTYPE
                archive.addfile(info)
                continue
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def _list(*members: object, version: object = 1) -> bytes:
    return json.dumps({"version": version, "members": members}).encode()


def _member(name: str, data: bytes) -> tuple[bytes, tuple[str, bytes]]:
    entry = {"name": name, "size": len(data), "digest": sha256_bytes(data)}
    return _list(entry), (name, data)


NAME = "a" * 64


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([(CONTENTS, "link:/etc/passwd")], "does not begin with bundle.json"),
        ([(CONTENTS, "hard:elsewhere")], "does not begin with bundle.json"),
        ([("other.json", b"{}")], "does not begin with bundle.json"),
        ([(CONTENTS, _list(version=9))], "of version 9, and 1 is read here"),
        ([(CONTENTS, b"[1]")], "is no list of members"),
        ([(CONTENTS, b"{}")], "is no list of members"),
        ([(CONTENTS, b"[" * 100_000)], "is no list of members"),
        ([(CONTENTS, _list("abc"))], "is no list of members"),
        ([(CONTENTS, _list({"name": 5, "size": 1, "digest": NAME}))], "is no list of members"),
        ([(CONTENTS, _list({"name": "x", "size": "1", "digest": NAME}))], "is no list of members"),
        ([(CONTENTS, _list({"name": f"layers/{NAME}", "size": 1, "digest": "../x"}))], "has no size or digest"),
        ([(CONTENTS, _list({"name": f"layers/{NAME}", "size": 1, "digest": "b" * 64}))], "has no place in a store"),
        ([(CONTENTS, _list({"name": f"bases/{NAME}.tar", "size": 1, "digest": "b" * 64}))], "has no place in a store"),
        ([(CONTENTS, _list(*[{"name": f"layers/{NAME}", "size": 1, "digest": NAME}] * 2))], "is listed twice"),
        (
            [(CONTENTS, _list({"name": f"layers/{NAME}", "size": 0, "digest": NAME})), (f"layers/{NAME}", "link:/etc")],
            "is not what its list says",
        ),
        ([(CONTENTS, _list({"name": f"layers/{NAME}", "size": 1, "digest": NAME})), ("x", b"1")], "not what its list"),
        *(
            ([(CONTENTS, contents), member], words)
            for (contents, member), words in (
                (_member("records.jsonl", b"5"), "holds what is no record"),
                (_member("records.jsonl", b"{}"), "holds what is no record"),
                (_member("records.jsonl", b'{"key": 5, "seconds": "long"}'), "holds what is no record"),
                (_member("manifest.json", b"5"), "holds what is no entry"),
                (_member("manifest.json", b"[{}]"), "holds what is no entry"),
                (_member("manifest.json", b"\xff"), "holds what is no entry"),
                (_member("bases/x.json", b"[]"), "is no record of a base"),
                (_member("bases/x.json", b'{"archive": "/etc/passwd", "digest": "x"}'), "is no record of a base"),
            )
        ),
    ],
)
def test_what_is_not_of_the_form(
    elsewhere: AssetStore, tmp_path: Path, members: list[tuple[str, bytes | str]], words: str
) -> None:
    """One line, and the store is as it was."""
    with pytest.raises(InputError) as caught:
        read_bundle(elsewhere, _archive(tmp_path / "b.tar", *members))
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert not list(elsewhere.root.glob("bases/*")) and not elsewhere.archives.stored()


@pytest.mark.parametrize("place", [CONTENTS, f"layers/{NAME}"])
@pytest.mark.parametrize("form", ["gnu", "posix"])
def test_a_file_with_holes_is_refused(elsewhere: AssetStore, tmp_path: Path, place: str, form: str) -> None:
    """A small archive says that a member is of any size, and would fill the disk with zeros."""
    size = 64 << 20
    (tmp_path / CONTENTS).write_bytes(_list({"name": f"layers/{NAME}", "size": size, "digest": NAME}))
    (tmp_path / "layers").mkdir()
    for name in {f"layers/{NAME}", place}:
        with (tmp_path / name).open("ab") as stream:
            stream.truncate(size)
    command = ["tar", "--sparse", f"--format={form}", "-cf", "b.tar", CONTENTS, f"layers/{NAME}"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert (tmp_path / "b.tar").stat().st_size < 1 << 20
    with pytest.raises(InputError, match=r"is no bundle: (it does not begin|.* is not what its list says)"):
        read_bundle(elsewhere, tmp_path / "b.tar")
    assert not elsewhere.archives.stored()


def test_a_full_disk_is_told_before_the_work(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its size: what is free is made up."""
    store, entries = built
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1000))
    with pytest.raises(InfrastructureError, match=r"has 0 MB free, and the bundle needs \d+ more"):
        write_bundle(store, entries, tmp_path / "b.tar")
    assert not list(tmp_path.glob("b.tar*"))


def test_what_is_no_place_for_a_bundle(built: Built, elsewhere: AssetStore, tmp_path: Path) -> None:
    """A folder, and below a file; nothing is left there."""
    store, entries = built
    (tmp_path / "file").touch()
    for target, words in ((tmp_path, "is a folder"), (tmp_path / "file" / "b.tar", "cannot be written to")):
        with pytest.raises(InputError, match=words):
            write_bundle(store, entries, target)
    assert not list(tmp_path.rglob("*.part")) and not (tmp_path / "file").read_bytes()
    for source in (tmp_path, tmp_path / "none.tar"):
        with pytest.raises(InputError, match="is no file"):
            read_bundle(elsewhere, source)


@pytest.mark.parametrize("data", [b"", b"garbage" * 1000, b"\0" * 10240])
def test_what_is_no_bundle(elsewhere: AssetStore, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "b.tar").write_bytes(data)
    with pytest.raises(InputError, match=r"is no bundle|ends early"):
        read_bundle(elsewhere, tmp_path / "b.tar")


def test_nothing_built_is_no_bundle(package_site: Site, driver: Driver, tmp_path: Path) -> None:
    store = AssetStore(package_site.cache / "assets", driver, package_site)
    with pytest.raises(InputError, match="None of these rows is built"):
        write_bundle(store, [], tmp_path / "b.tar")
