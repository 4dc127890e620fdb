import pytest

from leonardo.gates.trees import ONLY_IN_FULL, ONLY_IN_PREPARED, Difference, differences, glob, read_tree

LINE = "/a\tfile\t0644\t0:0\t3\t1700\tabc\tuser.x=00"


def _changed(field: int, value: str) -> str:
    fields = LINE.split("\t")
    fields[field] = value
    return "\t".join(fields)


@pytest.mark.parametrize(
    ("field", "value", "aspect"),
    [
        (1, "folder", "kind"),
        (2, "0600", "mode"),
        (3, "33:0", "owner"),
        (4, "4", "size"),
        (6, "abd", "content"),
        (7, "", "attributes"),
    ],
)
def test_every_aspect_is_compared(field: int, value: str, aspect: str) -> None:
    found = list(differences(read_tree(LINE), read_tree(_changed(field, value))))
    assert [(entry.path, entry.aspect) for entry in found] == [("/a", aspect)]


def test_times_are_not_compared() -> None:
    assert list(differences(read_tree(LINE), read_tree(_changed(5, "1800")))) == []


def test_an_entry_that_only_one_tree_has() -> None:
    assert [entry.aspect for entry in differences(read_tree(LINE), {})] == [ONLY_IN_PREPARED]
    assert [entry.aspect for entry in differences({}, read_tree(LINE))] == [ONLY_IN_FULL]


def test_a_difference_says_where_and_what() -> None:
    assert str(Difference("/a", "mode", "0644", "0600")) == "/a: mode 0644, in the full image 0600"
    assert str(Difference("/a", ONLY_IN_FULL, "", "link")) == "/a: only in the full image (link)"


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/a/*.log", "/a/b.log", True),
        ("/a/*.log", "/a/b/c.log", False),
        ("/a/**", "/a/b/c.log", True),
        ("/a/**/c/*.pyc", "/a/b/b/c/d.pyc", True),
        ("/a+", "/aa", False),
        ("/a", "/a/b", False),
    ],
)
def test_patterns(pattern: str, path: str, matches: bool) -> None:
    assert bool(glob(pattern).fullmatch(path)) is matches
