"""What is left of a save that was interrupted, before the trainer starts again."""

import errno
import os
import zipfile
from pathlib import Path

import pytest

from leonardo.engine.upstream.state import mend_state, saved_state
from leonardo.errors import InfrastructureError
from leonardo.taxonomy import FailureClass


def save(place: Path, step: int, ranks: int = 2) -> Path:
    """A state as DeepSpeed leaves it: for each rank, archives with the model's and the optimizer's part."""
    folder = place / f"global_step{step}"
    folder.mkdir(parents=True)
    for rank in range(ranks):
        for kind in ("model", "optim"):
            with zipfile.ZipFile(folder / f"zero_pp_rank_{rank}_mp_rank_00_{kind}_states.pt", "w") as archive:
                archive.writestr("data.pkl", f"{step}")
    return folder


def names(place: Path) -> list[str]:
    """What is in a folder."""
    return sorted(path.name for path in place.iterdir())


@pytest.mark.parametrize(
    ("latest", "aside", "state"),
    [
        ("global_step9", ["set-aside-global_step10"], "global_step9"),
        ("global_step10", [], "global_step10"),
    ],
)
def test_what_was_begun_after_the_named_state_is_set_aside(
    tmp_path: Path, latest: str, aside: list[str], state: str
) -> None:
    """Only a state that was saved to its end is gone on with; the others are renamed, not removed."""
    place = tmp_path / "state"
    for step in (2, 9, 10):
        save(place, step)
    (place / "latest").write_text(latest)
    lines = list(mend_state(place))
    assert saved_state(place) == state
    assert names(tmp_path) == [*aside, "state"] and len(lines) == len(aside)
    assert list(mend_state(place)) == []


@pytest.mark.parametrize("latest", [b"", b"global_st", b"\0" * 14, b"global_step77", b"\xff\xfe", b"../elsewhere", None])
@pytest.mark.parametrize("newest", ["whole", "cut", "short"])
def test_a_damaged_name_costs_no_state(tmp_path: Path, latest: bytes | None, newest: str) -> None:
    """It is written anew for the newest state that is whole, and that is said."""
    place = tmp_path / "state"
    for step in (2, 9, 10):
        last = save(place, step)
    file = next(last.glob("*optim*"))
    if newest == "cut":
        file.write_bytes(file.read_bytes()[:30])
    elif newest == "short":
        file.unlink()
    if latest is not None:
        (place / "latest").write_bytes(latest)
    lines = list(mend_state(place))
    state = "global_step10" if newest == "whole" else "global_step9"
    assert saved_state(place) == state and state in lines[0] and "written anew" in lines[0]
    kept = {*names(place), *(name.removeprefix("set-aside-") for name in names(tmp_path))}
    assert {"global_step2", "global_step9", "global_step10"} <= kept


@pytest.mark.parametrize("steps", [(5,), (2, 9), ()])
def test_a_folder_in_the_place_of_the_name(tmp_path: Path, steps: tuple[int, ...]) -> None:
    """It is set aside, and costs no state."""
    place = tmp_path / "state"
    (place / "latest/within").mkdir(parents=True)
    for step in steps:
        save(place, step)
    lines = list(mend_state(place))
    assert "is a folder, set aside as set-aside-latest" in lines[0] or not steps
    assert saved_state(place) == (f"global_step{steps[-1]}" if steps else "")
    assert (tmp_path / "set-aside-latest/within").is_dir() and list(mend_state(place)) == []


@pytest.mark.parametrize(("latest", "state"), [(b"", "global_step5"), (None, "")])
def test_a_single_state_counts_where_something_was_written_in_its_name(
    tmp_path: Path, latest: bytes | None, state: str
) -> None:
    """Without ``latest`` its save may have been interrupted: it is set aside with its folder."""
    place = tmp_path / "state"
    save(place, 5)
    if latest is not None:
        (place / "latest").write_bytes(latest)
    assert len(list(mend_state(place))) == 1
    assert saved_state(place) == state and place.exists() == bool(state)
    assert (tmp_path / "set-aside-state/global_step5").is_dir() == (not state)


@pytest.mark.parametrize("damage", ["cut", "short"])
def test_a_named_state_that_is_not_whole_gives_way_to_an_earlier_one(tmp_path: Path, damage: str) -> None:
    """The disk was full for one rank, when the first had saved its part and written the name."""
    place = tmp_path / "state"
    file = [save(place, step) / "zero_pp_rank_1_mp_rank_00_optim_states.pt" for step in (2, 9, 10)][-1]
    (place / "latest").write_text("global_step10")
    file.write_bytes(file.read_bytes()[:30])
    if damage == "short":
        file.unlink()
    lines = list(mend_state(place))
    assert saved_state(place) == "global_step9" and "names 'global_step10', which is not whole" in lines[0]
    assert names(tmp_path) == ["set-aside-global_step10", "state"]


def test_a_lone_state_that_is_not_whole_is_set_aside(tmp_path: Path) -> None:
    """The trainer would fail at each restart. One whose files are whole is kept, though it may lack some."""
    place = tmp_path / "state"
    file = save(place, 5) / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    (place / "latest").write_text("global_step5")
    file.unlink()
    assert list(mend_state(place)) == [] and saved_state(place) == "global_step5"
    file.write_bytes(b"")
    (line,) = mend_state(place)
    assert "names no state that is whole (global_step5): set aside as set-aside-state" in line
    assert not place.exists() and (tmp_path / "set-aside-state/global_step5").is_dir()


def test_a_state_that_is_not_whole_gives_way_to_one_with_fewer_files(tmp_path: Path) -> None:
    """What is broken is no measure for what was saved before."""
    place = tmp_path / "state"
    save(place, 2)
    next(save(place, 9, ranks=3).glob("*optim*")).write_bytes(b"")
    (place / "latest").write_text("global_step9")
    lines = list(mend_state(place))
    assert saved_state(place) == "global_step2" and "names 'global_step9', which is not whole" in lines[0]
    assert names(tmp_path) == ["set-aside-global_step9", "state"] and list(mend_state(place)) == []


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_name_that_is_no_file_costs_no_state(tmp_path: Path, kind: str) -> None:
    """It is taken for an empty one, and not waited for."""
    place = tmp_path / "state"
    save(place, 5)
    if kind == "link":
        (place / "latest").symlink_to("gone")
    else:
        os.mkfifo(place / "latest")
    (line,) = mend_state(place)
    assert "cannot be read: it is written anew, for global_step5" in line and saved_state(place) == "global_step5"


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_the_name_of_what_is_set_aside_may_be_taken(tmp_path: Path, kind: str) -> None:
    """By what is no folder; what a link points at stays."""
    place, aside = tmp_path / "state", tmp_path / "set-aside-global_step9"
    for step in (2, 9):
        save(place, step)
    (place / "latest").write_text("global_step2")
    (tmp_path / "other").mkdir()
    if kind == "file":
        aside.touch()
    else:
        aside.symlink_to("other" if kind == "link" else "gone")
    assert len(list(mend_state(place))) == 1
    assert aside.is_dir() and not aside.is_symlink() and (tmp_path / "other").is_dir()


def test_a_disk_that_takes_nothing_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one is that is full, or that can only be read."""
    place = tmp_path / "state"
    save(place, 2)
    (place / "latest").touch()

    def full(path: Path, content: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr("leonardo.engine.upstream.state.write_atomic", full)
    with pytest.raises(InfrastructureError, match=r"latest: .* \(No space left on device\)") as caught:
        list(mend_state(place))
    assert caught.value.failure == FailureClass.SPACE


def test_what_is_set_aside_is_bounded(tmp_path: Path) -> None:
    """What an earlier start set aside goes when something else is."""
    place = tmp_path / "state"
    for step in (2, 3, 4, 5):
        save(place, step)
        (place / "latest").write_text("global_step2")
        list(mend_state(place))
    assert names(tmp_path) == ["set-aside-global_step5", "state"]


def test_no_state_at_all(tmp_path: Path) -> None:
    """Nothing is made, and a folder that names no state is out of upstream's way."""
    place = tmp_path / "state"
    assert list(mend_state(place)) == [] and not place.exists()
    place.mkdir()
    assert len(list(mend_state(place))) == 1 and not place.exists()
