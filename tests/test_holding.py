"""One process at a time in a run folder."""

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import pytest

from leonardo import holding
from leonardo.errors import InputError
from leonardo.holding import AT_WORK, alone_at, alone_in, in_turn, taken
from tests.processes import running

_HOLD = """
import sys, time
from pathlib import Path
from leonardo.holding import alone_in
with alone_in(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_another_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    """With its process named; one that was killed holds nothing."""
    with running([sys.executable, "-c", _HOLD, tmp_path / "run"], stdout=subprocess.PIPE) as first:
        assert first.stdout is not None and first.stdout.readline() == "held\n"
        words = rf"another process works there \(pid {first.pid} on "
        with pytest.raises(InputError, match=words) as caught, alone_in(tmp_path / "run"):
            pass
        assert "\n" not in str(caught.value) and caught.value.exit_code == 2
    for _ in range(2):
        with alone_in(tmp_path / "run"):
            pass


def test_a_lock_is_no_link(tmp_path: Path) -> None:
    """What it points at stays as it is."""
    (tmp_path / "other").write_text("kept")
    (tmp_path / AT_WORK).symlink_to(tmp_path / "other")
    with pytest.raises(InputError, match=r"\.at-work cannot be locked \(it is a link\)"), alone_in(tmp_path):
        pass
    with pytest.raises(InputError, match="it is a link"), in_turn(tmp_path / AT_WORK):
        pass
    assert (tmp_path / "other").read_text() == "kept"


@pytest.mark.parametrize("made", ["by nobody", "of old"])
def test_a_second_member_of_the_group_can_take_it(tmp_path: Path, made: str) -> None:
    """It stays when its maker has ended, whose umask is not the next one's rights."""
    lock = tmp_path / AT_WORK
    if made == "of old":
        lock.touch(0o644)
    before = os.umask(0o077)
    try:
        with alone_in(tmp_path):
            pass
    finally:
        os.umask(before)
    assert lock.stat().st_mode & 0o777 == 0o666


@pytest.mark.parametrize("way", [alone_at, in_turn])
def test_a_lock_that_was_removed_while_it_was_taken_is_taken_anew(
    tmp_path: Path, way: Callable[[Path], AbstractContextManager[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would let another in, who finds none under the name."""
    removed = []

    def taken_and_removed(stream: IO[str]) -> bool:
        if not removed:
            removed.append(Path(f"/proc/self/fd/{stream.fileno()}").readlink())
            removed[0].unlink()
        return taken(stream)

    monkeypatch.setattr(holding, "taken", taken_and_removed)
    with way(tmp_path / "file"):
        assert removed[0].exists()
