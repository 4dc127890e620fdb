from pathlib import Path

import pytest

from leonardo.assets import guard


def test_nothing_to_say_where_all_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SPACE", 1)
    monkeypatch.setattr(guard, "SPACE_PER_JOB", 1)
    monkeypatch.setattr(guard, "INODES", 1)
    found = guard.inspect(tmp_path / "store", 1)
    assert found.problems == ()
    assert found.jobs == 1
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [("SPACE", 1 << 60, "GiB are free and"), ("INODES", 1 << 60, "more files can be made")],
)
def test_too_little_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: int, complaint: str
) -> None:
    monkeypatch.setattr(guard, name, value)
    (problem,) = (line for line in guard.inspect(tmp_path, 1).problems if complaint in line)
    assert str(tmp_path) in problem


def test_missing_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    problems = guard.inspect(tmp_path, 1, images=["ubuntu:22.04"]).problems
    assert "tar is not installed: install it" in problems
    assert any("ubuntu:22.04 would have to be made" in problem for problem in problems)


def test_jobs_are_bounded_by_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MEMORY_PER_JOB", 1 << 60)
    found = guard.inspect(tmp_path, 4)
    assert found.jobs == 1
    assert "4 jobs were asked for, and the memory is for 1" in "".join(found.notes)


def test_what_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert any("cannot be written to" in problem for problem in guard.inspect(tmp_path / "file" / "store", 1).problems)
