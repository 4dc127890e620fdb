"""Which step is a run's last once it is asked to stop, and how it then ends."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from leonardo.gates.steps import read_records
from leonardo.hooks import step_records
from leonardo.hooks.stopping import STOP, end_if_saved, save_if_asked

ENDING = """
import sys
from types import SimpleNamespace
from leonardo.hooks.shutdown import leave_nothing
from leonardo.hooks.stopping import end_if_saved

@leave_nothing
def main():
    args = SimpleNamespace(checkpoint_state_dir="state", num_training_steps=9, checkpoint_state_freq=2)
    for step in range(3, 10):
        end_if_saved(args, step)
        print("went on after", step, flush=True)
main()
"""


def settings(folder: str | None = "state") -> SimpleNamespace:
    """Upstream's, as far as they are looked at."""
    return SimpleNamespace(checkpoint_state_dir=folder, num_training_steps=9, checkpoint_state_freq=5)


@pytest.fixture
def stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file; it is there."""
    monkeypatch.setenv(STOP, str(tmp_path / "stop"))
    (tmp_path / "stop").write_text("USR1\n")
    return tmp_path / "stop"


def test_the_state_is_saved_and_the_record_is_there_before(stop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However the end comes then: no step that has a state is without its record."""
    monkeypatch.setenv("LEONARDO_RUN", str(stop.parent))
    step_records._book.cache_clear()
    step_records.begin_record(3, 0.0, [])
    args = settings()
    save_if_asked(args, 3)
    assert args.checkpoint_state_freq == 1
    assert [record.step for record in read_records(stop.parent / step_records.STEPS_FILE)] == [3]
    step_records._book.cache_clear()


@pytest.mark.parametrize("why", ["not asked", "not to be asked", "no state", "last step"])
def test_a_run_goes_on(stop: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """Nothing of it is changed."""
    if why == "not asked":
        stop.unlink()
    elif why == "not to be asked":
        monkeypatch.delenv(STOP)
    args, step = settings(None if why == "no state" else "state"), 9 if why == "last step" else 5
    before = dict(vars(args))
    save_if_asked(args, step)
    end_if_saved(args, step)
    assert vars(args) == before


def test_asked_while_a_state_is_saved(stop: Path) -> None:
    """That was saved, without having been asked for: it ends there, and after no step that was not saved."""
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (143, "went on after 3\n")
    assert done.stderr == "leonardo: asked to stop: the state of step 4 is saved, the run ends\n"
