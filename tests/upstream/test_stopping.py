"""Patch 0023 in upstream's own training loop: a run that is asked to stop, in each place where that may come."""

import itertools
import time
from pathlib import Path
from queue import Empty
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from leonardo.hooks.stopping import STOP
from leonardo.overlay.tree import Tree
from tests.upstream.extracted import ROOT, define

STEPS, EVERY = 5, 3
SAVED = "the state of step {} is saved"


@pytest.fixture
def stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file; it is not there yet. The end is an exception alone: no timer that ends this process."""
    monkeypatch.setenv(STOP, str(tmp_path / "stop"))
    monkeypatch.delenv("LEONARDO_RUN", raising=False)
    monkeypatch.setattr("leonardo.hooks.stopping.end_as_asked", mock.Mock(side_effect=SystemExit(143)))
    for name in ("watch.watch_engines", "weights.expect_pause", "weights.wait_for_pause"):
        monkeypatch.setattr(f"leonardo.hooks.{name}", lambda *arguments: True)
    return tmp_path / "stop"


def trained(source: str, stop: Path, asked: str, state: str | None = "state", full: bool = False) -> list[str]:
    """What upstream's loop did, in its order; ``asked`` is the deed in which it is asked to stop.

    Args:
        state: folder for states.
        full: the disk is, for states.
    """
    done: list[str] = []

    def did(what: str) -> None:
        done.append(what)
        if what == asked:
            stop.write_text("USR1\n")

    def saved(folder: str, client: dict[str, Any]) -> None:
        did(f"state {client['training_step']}")

    def progress(references: Any, desc: str = "", **others: Any) -> None:
        if full and desc.startswith("Saving checkpoint"):
            raise OSError(28, "No space left on device")

    def stepped(*arguments: Any) -> tuple[int, int]:
        did(f"step {arguments[6]}")
        return 1, 1

    group = mock.MagicMock()
    group.models[0].save_checkpoint_state.remote = saved
    space: dict[str, Any] = {
        "ray": mock.MagicMock(get=mock.Mock(side_effect=itertools.cycle([True, False]))),  # whether it is paused
        "time": SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda seconds: None),
        "Empty": Empty,
        "WEIGHT_SYNC_TIMEOUT_S": 60,
        "WeightSyncTrigger": lambda: mock.Mock(notify=lambda step: did(f"weights {step}")),
        "ray_get_with_progress": progress,
        "one_training_step": stepped,
        "maybe_evaluate": lambda args, step, *others: did(f"evaluation {step}"),
        "save_final_model": lambda *arguments: did("model"),
    }
    train = define(source, ["run_training"], space)["run_training"]
    given = {name: mock.MagicMock() for name in train.__code__.co_varnames[: train.__code__.co_argcount]}
    given["weight_sync_metrics_Q"].get_nowait.side_effect = Empty
    given |= {"resume_training_step": 1, "checkpoint_state": None, "eval_dataset": None, "policy_group": group}
    given["args"] = SimpleNamespace(
        num_training_steps=STEPS, checkpoint_state_freq=EVERY, checkpoint_state_dir=state, world_size=1,
        deepspeed_stage=2, send_slack_alerts=False, verbose=False, local_eval_every=0,
    )  # fmt: skip
    try:
        train(**given)
    except SystemExit as end:
        done.append(f"exit {end.code}")
    except OSError:
        done.append("error")
    return done


WHOLE = [
    word
    for step in range(1, STEPS + 1)
    for word in (f"step {step}", *([f"state {step}"] if step % EVERY == 0 else []), f"weights {step}", f"evaluation {step}")
] + ["model"]  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "last"),
    [
        ("nothing", ""),
        ("step 1", "state 1"),
        ("step 2", "state 2"),
        ("state 3", "state 3"),
        ("weights 3", "state 4"),
        ("evaluation 3", "state 4"),
        ("evaluation 4", ""),
        ("step 5", ""),
    ],
)
def test_asked(
    upstream: Tree, commit: tuple[str, str], stop: Path, asked: str, last: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends after the state of the step that it is in; in its last step it goes on to its end."""
    done = trained(upstream.git("show", f"{commit[1]}:{ROOT}/grpo_fast.py"), stop, asked)
    if not last or commit[0] == "unpatched":
        assert done == WHOLE
        return
    step = last.removeprefix("state ")
    assert done == [*WHOLE[: WHOLE.index(f"step {step}") + 1], last, "exit 143"]
    assert SAVED.format(step) in capsys.readouterr().err


def test_a_state_that_cannot_be_saved_is_an_error(
    upstream: Tree, commit: tuple[str, str], stop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And is not said to be saved."""
    done = trained(upstream.git("show", f"{commit[1]}:{ROOT}/grpo_fast.py"), stop, "step 2", full=True)
    assert (done[-3:], SAVED[:9] in capsys.readouterr().err) == (
        (["step 2", "state 2", "error"], False) if commit[0] == "patched" else (["step 3", "state 3", "error"], False)
    )


def test_nothing_to_go_on_from(upstream: Tree, commit: tuple[str, str], stop: Path) -> None:
    """A run that saves no state goes on, until it is ended."""
    done = trained(upstream.git("show", f"{commit[1]}:{ROOT}/grpo_fast.py"), stop, "step 2", state=None)
    assert done == [word for word in WHOLE if not word.startswith("state")]
