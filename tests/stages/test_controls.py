"""Calibration at its full size, as it is and with each fault: which criteria fail, and that no other does.

Minutes each, so slow; ``tests/engine/test_faults.py`` holds the same for a policy that trains in seconds. They start
from the desk's own warm start, which is made once, as ``make calibrate`` makes it.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from leonardo.engine.desk.config import LearnerConfig
from leonardo.engine.desk.faults import Faults
from leonardo.engine.desk.learner import train
from leonardo.errors import InfrastructureError
from leonardo.evaluation import compare
from leonardo.gates.criteria import apply
from leonardo.gates.signal import signal_figures
from leonardo.gates.steps import read_records
from leonardo.settings import LAUNCH
from leonardo.site import load_site
from leonardo.stages.definition import load_stage
from leonardo.stages.recipe import Recipe, opened

pytestmark = pytest.mark.slow

SEED = 1
Calibrate = Callable[[str, LearnerConfig], tuple[set[str], dict[str, Any]]]


@pytest.fixture(scope="module")
def calibrate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Calibrate]:
    """Trains and evaluates: the figures that miss their criterion, of those that training and evaluation measure."""
    stage, folder, console = load_stage("calibrate"), tmp_path_factory.mktemp("controls"), Console()
    episode = stage.episode_settings()
    with ExitStack() as stack:
        try:
            choice = stack.enter_context(opened("auto", console))
        except InfrastructureError as error:
            pytest.skip(str(error))
        recipe = Recipe(stage.corpus_sizes(), SEED, load_site("desk"), choice, folder, console)
        recipe.prepare("prepare")
        base = recipe.warm_start("warm start", stage.warm_start_config())
        base_record = recipe.evaluate("evaluate the base policy", base, "base", stage.attempts, episode)

        def run(name: str, config: LearnerConfig) -> tuple[set[str], dict[str, Any]]:
            with recipe.sandboxes(name, episode) as make_backend:
                policy = train(config, base, recipe.train_tasks, folder / name, SEED, make_backend)
            trained = recipe.evaluate(f"evaluate, {name}", policy, name, stage.attempts, episode)
            difference = compare(base_record, trained).difference
            figures = signal_figures(read_records(folder / name / "steps.jsonl"))
            figures |= {"evaluated_pairs": difference.pairs, "difference": difference.value}
            figures |= {"difference_ci_low": difference.interval[0] if difference.interval else None}
            findings = apply([each for each in stage.criteria if each.figure in figures], figures)
            return {finding.criterion.figure for finding in findings if not finding.ok}, figures

        yield run


@pytest.fixture
def learner() -> LearnerConfig:
    return load_stage("calibrate").learner()


def test_calibration_passes(calibrate: Calibrate, learner: LearnerConfig) -> None:
    assert calibrate("plain", learner)[0] == set()


def test_with_shuffled_rewards_the_evaluation_fails(calibrate: Calibrate, learner: LearnerConfig) -> None:
    failing, figures = calibrate("shuffled", replace(learner, faults=Faults(shuffled_rewards=True)))
    assert failing == {"difference_ci_low"}, figures


def test_with_a_learning_rate_of_0_the_update_fails(calibrate: Calibrate, learner: LearnerConfig) -> None:
    failing, figures = calibrate("frozen", replace(learner, learning_rate=0.0, steps=4))
    assert {"nonzero_updates", "parameters_moved_share"} <= failing, figures


def test_where_a_fifth_of_the_sandboxes_fails_the_verdict_is_the_same(
    calibrate: Calibrate, learner: LearnerConfig
) -> None:
    failing, figures = calibrate("failing", replace(learner, faults=Faults(failing_sandboxes=0.2)))
    assert failing == set(), figures
    assert 0 < figures["infrastructure_share"] < 0.05  # a fifth of a fifth of a fifth is lost with all its tries


def test_nan_ends_the_stage_with_step_and_tensor_named(tmp_path: Path) -> None:
    stage = yaml.safe_load((LAUNCH / "stages" / "calibrate.yaml").read_text())
    stage["desk"]["faults"] = {"nan_gradient_at": 2}
    stage["attempts"] = 0  # what is never trained is not evaluated
    path = tmp_path / "calibrate.yaml"
    path.write_text(yaml.safe_dump(stage))
    words = ["stage", "run", path, "--force", "a control run", "--runs", tmp_path / "runs", "--out", tmp_path / "out"]
    done = subprocess.run(
        [sys.executable, "-m", "leonardo.cli", *map(str, words)], capture_output=True, text=True, timeout=900
    )
    printed = done.stdout + done.stderr
    assert done.returncode == 1, printed
    assert "step 2: not finite: model.norm.weight (gradient)" in printed.replace("\n", " ")
    assert "Traceback" not in printed
    (run,) = (tmp_path / "runs").glob("calibrate-*")
    assert len((run / "steps.jsonl").read_text().splitlines()) == 2
    assert [each.name.split("-")[1] for each in (run / "checkpoints").iterdir()] == ["000001"]
    assert not (run / "policy").exists()
    assert json.loads((tmp_path / "out" / "control.json").read_text())["pins"]["injected"] == ["nan_gradient_at=2"]
