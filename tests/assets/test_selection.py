from pathlib import Path

import pytest

from leonardo.assets.selection import read_chosen, select
from leonardo.errors import InputError
from leonardo.options import RowOptions
from leonardo.tasks.task import Task

TASKS = [Task(f"t{number}", "Do it.", "", {}, image="tiny:1") for number in range(100)]


def ids(tasks: list[Task]) -> list[str]:
    return [task.id for task in tasks]


def test_first_ids_and_files(tmp_path: Path) -> None:
    (tmp_path / "ids").write_text("\ufefft7 # why\n\n# none\nt5\n")
    assert ids(select(TASKS, first=2)) == ["t0", "t1"]
    assert ids(select(TASKS, ids=["t9", "t3"])) == ["t3", "t9"]
    assert ids(select(TASKS, ids=["t9"], ids_file=tmp_path / "ids")) == ["t5", "t7", "t9"]


@pytest.mark.parametrize("content", ["", "\n", "\ufeff# none\n"])
def test_a_file_that_names_none_does_not_select_all(tmp_path: Path, content: str) -> None:
    """Nor do commas alone, or nothing: what made the list may have failed."""
    (tmp_path / "ids").write_text(content)
    with pytest.raises(InputError, match="ids names no row"):
        select(TASKS, ids_file=tmp_path / "ids")
    (tmp_path / "rows.jsonl").write_text("")
    for given in (",", ""):
        with pytest.raises(InputError, match=f"--ids '{given}' names no row"):
            read_chosen(tmp_path / "rows.jsonl", RowOptions(ids=given))


def test_a_sample_stays_and_grows() -> None:
    small, large = select(TASKS, sample=10), select(TASKS, sample=20)
    assert len(small) == 10
    assert set(ids(small)) < set(ids(large))
    assert ids(select(TASKS[::-1], sample=10))[::-1] == ids(small)


def test_shards_are_a_partition() -> None:
    parts = [select(TASKS, shard=f"{number}/7") for number in range(1, 8)]
    assert sorted(name for part in parts for name in ids(part)) == sorted(ids(TASKS))
    assert all(5 <= len(part) <= 25 for part in parts)
    assert ids(select(TASKS[:50], shard="3/7")) == [name for name in ids(parts[2]) if int(name[1:]) < 50]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"ids": ["t1", "x"]}, "1 ids are of no row, such as x"),
        ({"ids_file": Path("/no/such")}, "/no/such cannot be read"),
        ({"shard": "0/3"}, "'0/3' is no shard"),
        ({"shard": "4/3"}, "'4/3' is no shard"),
        ({"shard": "x"}, "'x' is no shard"),
        ({"shard": f"1/{'9' * 5000}"}, "'1/9{38}' is no shard"),
    ],
)
def test_bad_input_is_one_line(arguments: dict, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        select(TASKS, **arguments)
