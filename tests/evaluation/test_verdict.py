"""The verdict: learning is claimed where it was shown, and nowhere else."""

from dataclasses import dataclass

import pytest

from leonardo.evaluation import EvaluationRecord, compare, evaluate, verdict
from leonardo.tasks.task import Task

PINS = {"driver": "namespaces", "sampling": {}}
MIXED = {"step": 1, "rewards": [[1, 0, None], [0, 0, 1]], "zero_variance_share": 0.0, "update_norm": 0.1}


@dataclass(frozen=True)
class Rollout:
    task_id: str
    seed: int
    reward: float | None
    failure: None = None


def evaluation(passing: int, tasks: int = 40, lost: int = 0) -> EvaluationRecord:
    """An evaluation whose first ``passing`` of ``tasks`` pass, and whose last ``lost`` never get a sandbox."""
    names = [f"t{number:02}" for number in range(tasks)]

    def run(given, seeds):
        for task, seed in zip(given, seeds, strict=True):
            place = names.index(task.id)
            yield Rollout(task.id, seed, None if place >= tasks - lost else float(place < passing))

    made = [Task(id=name, instruction="", definition="", tests={}) for name in names]
    return evaluate(run, made, attempts=1, seed=1, pins=PINS, model="m")


def judged(base: int, trained: int, steps=(MIXED,), **changes):
    return verdict(compare(evaluation(base, **changes), evaluation(trained, **changes)), steps)


def test_an_interval_above_zero_is_learning():
    found = judged(10, 25)
    assert found.kind == "learning"
    assert "62.5 %, the base 25.0 %; paired over 40 tasks that is +37.5 points, 95 % interval +2" in found.sentence


def test_an_interval_that_includes_zero_is_no_difference():
    found = judged(20, 21)
    assert found.kind == "no-difference"
    assert "+2.5 points" in found.sentence
    assert found.sentence.endswith("which includes 0.")


def test_a_worse_policy_is_called_worse():
    found = judged(25, 10)
    assert found.kind == "regression"
    assert "-37.5 points" in found.sentence


@pytest.mark.parametrize(
    ("step", "why"),
    [
        ({"rewards": [[0, 0], [0, None]]}, "every reward was 0"),
        ({"reward_mean": 0.0}, "every reward was 0"),
        ({"rewards": [[1, 1], [0, 0]], "zero_variance_share": 1.0}, "every group was filtered out"),
        ({"rewards": [[1, 0]], "zero_variance_share": 0.0, "update_norm": 0.0}, "no weight moved"),
    ],
)
def test_steps_that_cannot_teach_are_plumbing_whatever_the_evaluation_shows(step, why):
    for found in (judged(10, 25, steps=[step, step]), verdict(None, [step, step])):
        assert found.kind == "plumbing"
        assert why in found.sentence
        assert "Plumbing only, no learning: 2 training steps" in found.sentence


def test_one_reward_among_zeros_is_not_plumbing():
    assert judged(10, 25, steps=[{"rewards": [[0, 0]]}, {"rewards": [[0, 1]]}]).kind == "learning"


def test_a_run_without_steps_or_comparison_or_rewards_is_incomplete():
    assert verdict(None, []).kind == "incomplete"
    assert judged(10, 25, steps=[]).kind == "incomplete"
    assert "not been compared" in verdict(None, [MIXED]).sentence
    assert "no rollout got a reward" in judged(10, 25, steps=[{"rewards": [[None, None]]}]).sentence


def test_too_few_pairs_prove_nothing_however_clear_they_look():
    found = judged(0, 9, tasks=9)
    assert found.kind == "incomplete"
    assert "share 9 tasks" in found.sentence
    assert judged(0, 10, tasks=10).kind == "learning"
    assert judged(0, 9, tasks=20, lost=11).kind == "incomplete"


@pytest.mark.parametrize("steps", [[], [MIXED], [{"rewards": [[0]]}]])
def test_every_sentence_names_its_kind_before_a_colon(steps):
    for comparison in (None, compare(evaluation(10), evaluation(25))):
        kind, reason = verdict(comparison, steps).sentence.split(": ", 1)
        assert kind
        assert reason.endswith(".")
