"""A run that the stage wants to end: the trainer is asked to, and what it saved on the way is taken."""

import signal
import subprocess
from pathlib import Path

import pytest

from leonardo.engine.upstream import engine
from leonardo.engine.upstream.supervisor import Outcome
from leonardo.files import write_json
from leonardo.gates.steps import append_record
from leonardo.rollout.episode import EpisodeSettings
from tests.gates.test_signal import record
from tests.processes import running


def test_the_watch_ends_with_the_step_that_is_the_last(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        append_record(tmp_path / engine.STEPS_FILE, record(step))
    run = engine.UpstreamRun({}, {}, {}, "", {}, EpisodeSettings(), tmp_path, tmp_path, tmp_path)
    seen: list[int] = []
    with running(["sleep", "30"]) as process:
        found = engine._watch(process, run, tmp_path, lambda each: (seen.append(each.step), each.step == 2)[1])
        assert process.poll() is None  # ending it is the caller's part
    assert (found, seen) == (("", True), [1, 2])


@pytest.mark.parametrize(
    ("stopped", "code", "expected"),
    [(True, 128 + signal.SIGTERM, 0), (True, 1, 1), (False, 128 + signal.SIGTERM, 128 + signal.SIGTERM)],
)
def test_a_trainer_that_ended_as_it_was_asked_to_ended_well(
    tmp_path: Path, stopped: bool, code: int, expected: int
) -> None:
    (tmp_path / engine.LOG).write_text("")
    outcome = Outcome(exit_code=code, asked_to_end=stopped)
    write_json(tmp_path / engine.OUTCOME, outcome.model_dump(mode="json"))
    found = engine._outcome(tmp_path, "", stopped, 1.0)
    assert found.exit_code == expected
    assert bool(found.reason) == (expected != 0)
