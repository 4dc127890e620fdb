import io
import os
from pathlib import Path

import pytest

from leonardo.assets import archives
from leonardo.assets.archives import Archives, digest_of_compressed
from leonardo.assets.catalogue import Catalogue
from leonardo.errors import InfrastructureError
from leonardo.files import sha256_bytes


@pytest.fixture
def stored(tmp_path: Path) -> Archives:
    return Archives(tmp_path / "layers", Catalogue(tmp_path / "catalogue"), tmp_path / "making")


def put(stored: Archives, content: bytes) -> str:
    with stored.writing() as writer:
        writer.write(content)
    return writer.digest


SMALL_LAYER = b"a little" * 100
LARGE_LAYER = os.urandom(archives.SMALL) * 3


@pytest.mark.parametrize("content", [b"", SMALL_LAYER, LARGE_LAYER])
def test_named_by_what_is_compressed(stored: Archives, content: bytes) -> None:
    digest = put(stored, content)
    assert digest == sha256_bytes(content)
    assert stored.is_whole(digest)
    with stored.unpackable(digest) as archive:
        assert archive.suffix in (".zst", ".tar")
        assert archive.suffix == ".zst" or archive.read_bytes() == content
    assert put(stored, content) == digest
    assert stored.stored().keys() == {digest}


def test_frames_are_one_stream(stored: Archives, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_FRAME", 1000)
    digest = put(stored, SMALL_LAYER * 50)
    assert stored.is_whole(digest)
    assert digest == sha256_bytes(SMALL_LAYER * 50)


def test_only_large_ones_are_files(stored: Archives, tmp_path: Path) -> None:
    put(stored, SMALL_LAYER)
    assert not (tmp_path / "layers").exists()
    large = put(stored, LARGE_LAYER)
    assert [path.name for path in (tmp_path / "layers").iterdir()] == [f"{large}.tar.zst"]
    assert not list((tmp_path / "making").iterdir())


DAMAGES = {
    "truncated": lambda data: data[:-5],
    "empty": lambda data: b"",
    "another byte": lambda data: (
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
    ),
    "something else": lambda data: b"garbage",
}


@pytest.mark.parametrize("content", [SMALL_LAYER, LARGE_LAYER])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_layer_is_told_and_replaced(stored: Archives, tmp_path: Path, content: bytes, damage: str) -> None:
    digest = put(stored, content)
    path = stored.path(digest)
    if path.exists():
        path.write_bytes(DAMAGES[damage](path.read_bytes()))
    else:
        catalogue = Catalogue(tmp_path / "catalogue")
        catalogue.put_layer(digest, DAMAGES[damage](catalogue.layer(digest) or b""))
    assert not stored.is_whole(digest)
    with pytest.raises(InfrastructureError, match="missing or damaged"), stored.unpackable(digest):
        pass
    assert put(stored, content) == digest
    assert stored.is_whole(digest)


def test_a_layer_under_a_wrong_name(stored: Archives) -> None:
    digest = put(stored, LARGE_LAYER)
    wrong = "0" * 64
    stored.path(digest).rename(stored.path(wrong))
    assert not stored.is_whole(wrong)
    with pytest.raises(InfrastructureError, match="damaged"), stored.unpackable(wrong):
        pass
    with pytest.raises(InfrastructureError, match="missing"), stored.unpackable(digest):
        pass


def test_a_block_that_fails_keeps_nothing(stored: Archives, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no"), stored.writing() as writer:
        writer.write(LARGE_LAYER)
        raise ValueError("no")
    assert stored.stored() == {}
    assert not list((tmp_path / "making").iterdir())


def test_one_that_was_compressed_elsewhere(stored: Archives, tmp_path: Path) -> None:
    other = Archives(tmp_path / "other", Catalogue(tmp_path / "other"), tmp_path / "making")
    digests = [put(other, content) for content in (SMALL_LAYER, LARGE_LAYER)]
    for digest in digests:
        held = other.compressed(digest)
        data = held.read_bytes() if isinstance(held, Path) else held
        assert digest_of_compressed(io.BytesIO(data)) == digest
        assert not stored.take(digest, io.BytesIO(data[:-1]))
        assert not stored.take("1" * 64, io.BytesIO(data))
        assert stored.stored().keys().isdisjoint({digest})
        assert stored.take(digest, io.BytesIO(data))
        assert stored.is_whole(digest)
