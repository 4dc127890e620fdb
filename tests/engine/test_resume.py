"""A run that is killed and resumed ends as one that was not, bit for bit."""

import json
import multiprocessing
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from leonardo.engine.desk.checkpoints import KEPT, read_checkpoint, write_checkpoint
from leonardo.engine.desk.policy import load_policy
from leonardo.engine.desk.update import digest_of_weights
from leonardo.errors import InputError
from leonardo.rollout.sandboxes import MakeBackend
from leonardo.tasks.task import Task
from tests.engine.arms import CONFIG, tasks, train_alone

TIMED = ("times", "sandbox")
"""Fields of a step record that hold durations."""


@pytest.fixture
def start(arms_policy: Path, prepare: Callable[[Sequence[Task]], MakeBackend]) -> Path:
    """The policy to begin with; the tasks are prepared."""
    prepare(tasks())
    return arms_policy


@pytest.fixture
def launch(desk_site: Path, start: Path) -> Iterator[Callable[..., BaseProcess]]:
    """Starts (or resumes) a training run in a process of its own, by the name of its folder."""
    context = multiprocessing.get_context("forkserver")  # imports once, and forks from there
    context.set_forkserver_preload(["tests.engine.arms"])
    processes = []

    def launched(run: Path, **changes: Any) -> BaseProcess:
        process = context.Process(target=train_alone, args=(desk_site, start, run, replace(CONFIG, **changes)))
        process.start()
        processes.append(process)
        return process

    yield launched
    for process in processes:
        process.kill()
        process.join()


def finish(process: BaseProcess) -> None:
    process.join(120)
    assert process.exitcode == 0


def outcome(run: Path) -> tuple[str, list[dict[str, Any]]]:
    """Digest of the final weights, and the records but for durations."""
    lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    records = [{name: value for name, value in line.items() if name not in TIMED} for line in lines]
    return digest_of_weights(load_policy(run / "policy").model.state_dict()), records


def killed(launch: Callable[..., BaseProcess], run: Path, step: int, wait: float) -> int:
    """Start a run, kill it ``wait`` seconds after it wrote ``step`` records, and say how many it then had written."""
    process = launch(run)
    records = run / "steps.jsonl"
    deadline = time.monotonic() + 120
    while process.is_alive() and time.monotonic() < deadline and lines_of(records) < step:
        time.sleep(0.002)
    time.sleep(wait)
    process.kill()
    process.join()
    return lines_of(records)


def lines_of(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_a_killed_run_ends_as_an_uninterrupted_one(launch, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(launch(whole))
    digest, records = outcome(whole)
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5]
    assert sum(record["update_norm"] > 0 for record in records) >= 2, "nothing was learnt: the test would prove nothing"
    assert len({record["weights_digest"] for record in records}) >= 2

    assert killed(launch, broken, step=3, wait=0.0) >= 3
    # the newest checkpoint is damaged, a step is half written, and the first resumption is killed as well
    newest = max((broken / "checkpoints").glob("step-*.pt"))
    newest.write_bytes(newest.read_bytes()[:-1000])
    with (broken / "steps.jsonl").open("a") as stream:
        stream.write('{"step": 9, "rewa')
    killed(launch, broken, step=4, wait=0.0)
    finish(launch(broken))
    assert outcome(broken) == (digest, records)
    said = (tmp_path / "broken.said").read_text()
    assert f"{newest} is damaged" in said
    assert re.search("resumed after step [12] of 5", said)  # the first time: a kill may come before a checkpoint
    assert len(list((broken / "checkpoints").glob("step-*.pt"))) == KEPT
    assert newest.with_name(f"{newest.name}.damaged").exists()


@pytest.mark.slow
def test_ten_runs_killed_at_random_end_as_an_uninterrupted_one(launch, tmp_path):
    started = time.monotonic()
    finish(launch(tmp_path / "whole"))
    whole = outcome(tmp_path / "whole")
    pace = (time.monotonic() - started) / CONFIG.steps
    random = Random()  # another ten each time
    for number in range(10):
        run = tmp_path / f"broken-{number}"
        step, wait = random.randrange(CONFIG.steps), random.uniform(0, pace)
        there = killed(launch, run, step, wait)
        finish(launch(run))
        assert outcome(run) == whole, f"killed {wait:.3f} s after step {step}, with {there} records"


def test_a_run_may_be_resumed_to_go_further(launch, tmp_path):
    finish(launch(tmp_path / "whole", steps=3))
    finish(launch(tmp_path / "further", steps=2, checkpoint_every=2))
    finish(launch(tmp_path / "further", steps=3))
    assert outcome(tmp_path / "further") == outcome(tmp_path / "whole")


def test_another_run_is_not_resumed(launch, desk_site, start, tmp_path):
    finish(launch(tmp_path / "run", steps=1))
    with pytest.raises(InputError, match=r"is another run: learner\.learning_rate differs"):
        train_alone(desk_site, start, tmp_path / "run", replace(CONFIG, learning_rate=0.5))
    (tmp_path / "run" / "steps.jsonl").write_text("")
    with pytest.raises(InputError, match="has 0 of the 1 records"):
        train_alone(desk_site, start, tmp_path / "run")


def test_checkpoints_are_whole_or_set_aside(tmp_path):
    folder = tmp_path / "checkpoints"
    assert read_checkpoint(folder) is None
    for step in range(1, 5):
        write_checkpoint(folder, step, {"weights": torch.full((3,), float(step)), "taken": step})
    assert sorted(int(path.stem.split("-")[1]) for path in folder.iterdir()) == [3, 4]
    (folder / ".step-000005-x.pt.abc").write_bytes(b"half")
    newest = max(folder.glob("step-*.pt"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1  # one bit
    newest.write_bytes(content)
    lines: list[str] = []
    found = read_checkpoint(folder, lines.append)
    assert found is not None
    step, state = found
    assert (step, state["taken"], state["weights"].tolist()) == (3, 3, [3.0] * 3)
    assert len(lines) == 1 and newest.name in lines[0] and "set aside" in lines[0]
    assert not list(folder.glob(".step-*"))
