from pathlib import Path

import pytest

from leonardo.errors import InputError
from leonardo.gates.trees import ONLY_IN_FULL, ONLY_IN_PREPARED, Difference
from leonardo.gates.volatile import Volatile, environment_differences, load_volatile, sort_paths

VOLATILE = Volatile.model_validate(
    {
        "version": 1,
        "paths": [
            {"path": "/log", "aspects": ["content"], "reason": "times"},
            {"path": "/extra", "aspects": ["only-in-full"], "reason": "the builder's"},
            {"path": "/**.pyc", "aspects": ["content"], "same": "bytecode", "reason": "the source's time"},
            {"path": "/shadow", "aspects": ["content"], "same": "shadow", "reason": "the day"},
        ],
        "environment": [
            {"name": "TOOL_*", "reason": "the tool's"},
            {"name": "PLACE", "value": "there", "reason": "only there"},
        ],
    }
)


def _found(path: str, aspect: str, prepared: bytes = b"", full: bytes = b"") -> bool:
    told = sort_paths(VOLATILE, [Difference(path, aspect, "a", "b")], lambda _: prepared, lambda _: full)
    assert len(told.found) + sum(told.allowed.values()) == 1
    return bool(told.found)


def test_an_entry_covers_its_aspects_and_no_others() -> None:
    assert not _found("/log", "content")
    assert _found("/log", "mode")
    assert _found("/log2", "content")
    assert not _found("/extra", ONLY_IN_FULL)
    assert _found("/extra", ONLY_IN_PREPARED)


def test_bytecode_may_differ_in_its_sources_time_only() -> None:
    head = b"\xa7\r\r\n" + bytes(4)
    assert not _found("/x/a.pyc", "content", head + b"1111" + b"size" + b"code", head + b"2222" + b"size" + b"code")
    assert _found("/x/a.pyc", "content", head + b"1111" + b"size" + b"code", head + b"2222" + b"size" + b"Code")
    hashed = b"\xa7\r\r\n" + b"\x01\0\0\0"
    assert _found("/x/a.pyc", "content", hashed + b"1111" + b"hash", hashed + b"2222" + b"hash")


def test_shadow_may_differ_in_the_day_only() -> None:
    assert not _found("/shadow", "content", b"user:!:19000:0:99999:7:::\n", b"user:!:19001:0:99999:7:::\n")
    assert _found("/shadow", "content", b"user:!:19000:0:99999:7:::\n", b"user:*:19001:0:99999:7:::\n")


def test_a_file_that_cannot_be_read_is_a_difference() -> None:
    def read(path: str) -> bytes:
        raise FileNotFoundError(path)

    told = sort_paths(VOLATILE, [Difference("/shadow", "content", "a", "b")], read, read)
    assert len(told.found) == 1


def test_environments() -> None:
    found = environment_differences(
        VOLATILE,
        {"SAME": "1", "OURS": "1", "VALUE": "1", "PLACE": "here"},
        {"SAME": "1", "THEIRS": "1", "VALUE": "2", "TOOL_X": "1", "PLACE": "there"},
    )
    assert [(entry.path, entry.aspect) for entry in found] == [
        ("$OURS", ONLY_IN_PREPARED),
        ("$THEIRS", ONLY_IN_FULL),
        ("$VALUE", "value"),
    ]
    assert len(environment_differences(VOLATILE, {"PLACE": "here"}, {"PLACE": "elsewhere"})) == 1


def test_the_projects_own_list_gives_reasons_and_touches_no_folder_of_tasks() -> None:
    volatile = load_volatile()
    assert volatile.version >= 1
    for folder in ("/home/user/a", "/app/a", "/workspace/a", "/root/a", "/etc/a", "/opt/a", "/srv/a", "/tmp/a"):
        differences = [Difference(folder, aspect, "a", "b") for aspect in ("content", "mode", ONLY_IN_FULL)]
        assert sort_paths(volatile, differences, lambda _: b"1", lambda _: b"2").found == differences


@pytest.mark.parametrize(
    "text", ["version: 1\npaths: [{path: /a, aspects: [content]}]\n", "version: 1\npaths: [{path: /a}]\n", "[", "5"]
)
def test_a_list_that_is_none_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "volatile.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=r"no list of volatile paths|yaml:1 is not YAML"):
        load_volatile(path)
