"""What is left of a save that was interrupted, before the trainer starts again."""

from pathlib import Path

import pytest

from leonardo.engine.upstream.state import drop_unfinished, saved_state


@pytest.mark.parametrize(
    ("folders", "latest", "removed", "state"),
    [
        ((2, 9, 10), "global_step9", ["global_step10"], "global_step9"),
        ((9, 10), "global_step10", [], "global_step10"),
        ((2,), "", ["global_step2"], ""),
        ((2, 3), "global_step7", ["global_step2", "global_step3"], ""),
        ((), "", [], ""),
    ],
)
def test_only_a_state_that_was_saved_to_its_end_is_gone_on_with(
    tmp_path: Path, folders: tuple[int, ...], latest: str, removed: list[str], state: str
) -> None:
    """Upstream ends where its folder is there and no state can be loaded: without one there is no folder either."""
    place = tmp_path / "state"
    for number in folders:
        (place / f"global_step{number}").mkdir(parents=True)
        (place / f"global_step{number}" / "rank.pt").write_text("x")
    if latest:
        (place / "latest").write_text(latest)
    assert drop_unfinished(place) == removed
    assert saved_state(place) == state
    assert place.exists() == bool(state)
