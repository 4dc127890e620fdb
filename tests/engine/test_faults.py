"""Control runs: with each fault the criterion that is there for it fails (or holds), on the real learner.

The criteria are those of the stage ``calibrate``, the figures those of the signal gate.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from leonardo.engine.desk.config import LearnerConfig
from leonardo.engine.desk.faults import Faults
from leonardo.engine.desk.learner import train
from leonardo.engine.desk.sampler import Sampler
from leonardo.errors import FailureClass, InfrastructureError, InputError, NotFiniteError
from leonardo.evaluation import EvaluationRecord, compare, evaluate
from leonardo.gates.criteria import apply
from leonardo.gates.signal import signal_figures
from leonardo.gates.steps import read_records
from leonardo.rollout.episodes import run_rollouts
from leonardo.rollout.sandboxes import MakeBackend
from leonardo.stages.definition import load_stage
from leonardo.tasks.task import Task
from tests.engine.arms import CONFIG, SEED, tasks
from tests.engine.rollouts import rollout

Prepare = Callable[[Sequence[Task]], MakeBackend]
LEARNING = replace(CONFIG, steps=6, groups=4, group_size=8, wanted_groups=4, rounds=1, learning_rate=1e-3)


@pytest.fixture
def run(arms_policy: Path, prepare: Prepare, tmp_path: Path) -> Callable[[LearnerConfig], dict[str, Any]]:
    """Trains, and gives the signal gate's figures; the run is in ``tmp_path / "run"``."""
    make_backend = prepare(tasks())

    def figures(config: LearnerConfig) -> dict[str, Any]:
        train(config, arms_policy, tasks(), tmp_path / "run", SEED, make_backend)
        return signal_figures(read_records(tmp_path / "run" / "steps.jsonl"))

    return figures


def failing(figures: dict[str, Any]) -> set[str]:
    """The figures that miss calibration's criteria, of those that were measured."""
    criteria = [each for each in load_stage("calibrate").criteria if each.figure in figures]
    return {finding.criterion.figure for finding in apply(criteria, figures) if not finding.ok}


def evaluation(held_out: Sequence[Task], make_backend: MakeBackend, policy: Path, name: str) -> EvaluationRecord:
    roll: Any = partial(run_rollouts, Sampler.load(policy), make_backend=make_backend, settings=CONFIG.episode)
    return evaluate(roll, held_out, attempts=3, seed=7, pins={"driver": "test", "sampling": {}}, model=name)


def test_shuffled_rewards_fail_the_evaluation_and_nothing_else(run, arms_policy, prepare, tmp_path):
    held_out = tasks(10, "held-out")
    evaluated = partial(evaluation, held_out, prepare(held_out))
    base = evaluated(arms_policy, "base")
    for shuffled in (False, True):
        figures = run(replace(LEARNING, faults=Faults(shuffled_rewards=shuffled)))
        difference = compare(base, evaluated(tmp_path / "run" / "policy", "trained")).difference
        assert difference.interval is not None
        figures |= {"difference_ci_low": difference.interval[0], "evaluated_pairs": difference.pairs}
        assert failing(figures) == ({"difference_ci_low"} if shuffled else set()), difference
        for record in read_records(tmp_path / "run" / "steps.jsonl"):
            assert record.injected == (["shuffled_rewards=True"] if shuffled else [])
        (tmp_path / "run").rename(tmp_path / f"shuffled {shuffled}")


def test_a_learning_rate_of_0_fails_the_update_criterion(run):
    figures = run(replace(CONFIG, learning_rate=0.0))
    assert figures["signal_share"] > 0.2
    assert {"nonzero_updates", "parameters_moved_share"} <= failing(figures)


def test_sandboxes_that_fail_are_tried_again_and_the_verdict_stays(run):
    figures = run(replace(LEARNING, steps=4, faults=Faults(failing_sandboxes=0.2)))
    assert failing(figures) == set()
    assert figures["infrastructure_share"] < 0.05


def test_rollouts_that_are_lost_are_excluded_and_counted(run, tmp_path):
    """So many sandboxes fail that a fifth of the resets does, with all their tries."""
    figures = run(replace(LEARNING, steps=4, faults=Faults(failing_sandboxes=0.2 ** (1 / 3))))
    assert 0.08 < figures["infrastructure_share"] < 0.35
    assert failing(figures) == {"infrastructure_share"}
    records = read_records(tmp_path / "run" / "steps.jsonl")
    for record in records:
        lost = sum(reward is None for group in record.rewards for reward in group)
        assert lost == record.infrastructure_failures == sum(record.failures_by_class.values())
        given = [reward for group in record.rewards for reward in group if reward is not None]
        assert record.reward_mean == pytest.approx(sum(given) / len(given))
    assert any(record.infrastructure_failures and record.groups_kept for record in records)


def test_a_gradient_that_is_nan_ends_the_run_with_step_and_tensor_named(run, tmp_path):
    with pytest.raises(NotFiniteError, match=r"^step 2: not finite: \S+ \(gradient\)\. ") as caught:
        run(replace(LEARNING, steps=4, faults=Faults(nan_gradient_at=2)))
    assert caught.value.step == 2 and caught.value.exit_code != 0
    assert len(caught.value.tensors) == 1  # the one that it was put into, not all that it could have spread to
    assert [path.name.split("-")[1] for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["000001"]
    assert not (tmp_path / "run" / "policy").exists()
    first, second = read_records(tmp_path / "run" / "steps.jsonl")
    assert (first.finite, second.finite) == (True, False)
    assert second.non_finite == list(caught.value.tensors)
    assert second.weights_digest == first.weights_digest


def test_rewards_are_dealt_out_anew_among_those_that_have_one():
    rewards = [1.0, 0.0, None, 1.0, 0.0, 0.0, None, 1.0, 1.0, 0.0]
    rollouts = [rollout(reward) for reward in rewards]
    assert [each.reward for each in Faults().shuffle(rollouts, "seed")] == rewards
    dealt = [[each.reward for each in Faults(shuffled_rewards=True).shuffle(rollouts, f"seed {n}")] for n in range(50)]
    for given in dealt:
        assert [reward is None for reward in given] == [reward is None for reward in rewards]
        assert given.count(1.0) == 4
    assert len({tuple(given) for given in dealt}) > 20
    assert all(
        10 < sum(given[place] == 1.0 for given in dealt) < 40 for place in range(10) if rewards[place] is not None
    )
    assert dealt[0] == [each.reward for each in Faults(shuffled_rewards=True).shuffle(rollouts, "seed 0")]


def test_failing_sandboxes_are_a_share_that_the_seed_decides():
    asked: list[str] = []

    def outcomes(seed: int) -> list[bool]:
        make = Faults(failing_sandboxes=0.2).sandboxes(lambda task: asked.append(task.id), seed)

        def fails() -> bool:
            try:
                make(tasks()[0])
            except InfrastructureError as error:
                assert error.failure is FailureClass.RUNTIME
                return True
            return False

        return [fails() for _ in range(1000)]

    assert outcomes(1) == outcomes(1) != outcomes(2)
    assert 150 < sum(outcomes(1)) < 250
    with pytest.raises(InputError, match="share from 0 to 1"):
        Faults(failing_sandboxes=20)
