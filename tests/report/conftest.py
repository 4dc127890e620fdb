"""Synthetic runs: deterministic records of the shape that the engine and the evaluation write."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest

from leonardo.errors import FailureClass
from leonardo.evaluation import EvaluationRecord, RunFacts, Substitution, compare, evaluate
from leonardo.tasks.task import Task

FAMILIES = ["archives", "counting", "files", "json", "permissions", "processes", "repair", "search", "services", "text"]
PINS = {
    "driver": "namespaces",
    "sampling": {"temperature": 1.0, "top_p": 1.0, "max_tokens": 256},
    "prompt": "5c3d2f" + "0" * 58,
    "assets": "a91b" + "7" * 60,
}


@dataclass(frozen=True)
class SyntheticRollout:
    task_id: str
    seed: int
    reward: float | None
    failure: FailureClass | None = None


def make_steps(count: int = 30, gain: float = 0.35, seed: int = 0) -> list[dict]:
    """Step records of a policy whose success rises from 0.3 by ``gain``; ``gain=-1`` gives zero rewards throughout."""
    generator = numpy.random.default_rng(seed)
    steps = []
    for number in range(1, count + 1):
        success = numpy.clip(0.3 + gain * number / count, 0, 1) if gain > -1 else 0.0
        chances = generator.beta(2 * success + 1e-9, 2 * (1 - success) + 1e-9, 12) if success else numpy.zeros(12)
        rewards = [[int(reward) for reward in generator.binomial(1, chance, 8)] for chance in chances]
        failed = int(generator.random() < 0.2)
        if failed:
            rewards[0][0] = None
        flat = [reward for group in rewards for reward in group if reward is not None]
        same = sum(len({reward for reward in group if reward is not None}) == 1 for group in rewards)
        update = float(0.02 * generator.lognormal(0, 0.2)) if same < 12 else 0.0
        rollout, learning = (float(value) for value in generator.uniform(2.5, 4, 2))
        reset, command, destroy = (float(value * generator.lognormal(0, 0.08)) for value in (9.5, 1.3, 2.1))
        steps.append(
            {
                "step": number,
                "rewards": rewards,
                "task_ids": [f"train-{number}-{group}" for group in range(12)],
                "families": [FAMILIES[group % 10] for group in range(12)],
                "groups": 12,
                "zero_variance_groups": same,
                "groups_kept": 12 - same,
                "zero_variance_share": same / 12,
                "reward_mean": sum(flat) / len(flat),
                "infrastructure_failures": failed,
                "failures_by_class": {"runtime": failed} if failed else {},
                "mask_fraction": float(generator.uniform(0.001, 0.012)),
                "ratio_mean": float(generator.normal(1, 0.002)),
                "ratio_max": float(generator.uniform(1.3, 2.2)),
                "divergence_mean": float(generator.uniform(0.002, 0.006)),
                "divergence_max": float(generator.uniform(0.1, 0.3)),
                "first_pass_ratio_max_deviation": float(generator.uniform(1e-6, 4e-6)),
                "loss": float(generator.normal(0, 0.02)),
                "gradient_norm": update * 40,
                "update_norm": update,
                "parameters_moved_share": 0.99 if update else 0.0,
                "finite": True,
                "non_finite": [],
                "parsed_action_share": float(numpy.clip(0.93 + 0.05 * number / count, 0, 1)),
                "tokens": {"prompt": 30_000, "response": 9_000},
                "response_length_mean": 88.0,
                "entropy_mean": float(0.8 - 0.4 * number / count),
                "weights_digest": f"{number:064x}",
                "learning_rate": 1e-4,
                "times": {
                    "rollout": rollout,
                    "sandbox": rollout / 4,
                    "update": learning,
                    "hand_over": 0.2,
                    "step": rollout + learning + 0.25,
                },
                "sandbox": {
                    "reset_ms": [reset, reset * 1.6],
                    "command_ms": [command, command * 2.2],
                    "destroy_ms": [destroy, destroy * 1.4],
                },
                "rollouts": 96,
                "dropped_groups": 0,
            }
        )
    return steps


def make_evaluation(
    model: str, success: float, tasks_a_family: int = 6, failing: Sequence[str] = ()
) -> EvaluationRecord:
    """An evaluation of 10 families whose difficulty varies by task; tasks in ``failing`` never get a sandbox."""
    tasks = [
        Task(id=f"held-{family}-{number}", instruction=f"{family} {number}", definition="", tests={}, kind=family)
        for family in FAMILIES
        for number in range(tasks_a_family)
    ]
    difficulty = dict(zip((task.id for task in tasks), numpy.random.default_rng(4).normal(0, 0.25, 999), strict=False))

    def run(tasks, seeds):
        for task, seed in zip(tasks, seeds, strict=True):
            if task.id in failing:
                yield SyntheticRollout(task.id, seed, None, FailureClass.RUNTIME)
                continue
            passed = numpy.random.default_rng(seed).random() < success + difficulty[task.id]
            yield SyntheticRollout(task.id, seed, float(passed), None if passed or seed % 7 else FailureClass.AGENT)

    return evaluate(run, tasks, attempts=4, seed=11, pins=PINS, model=model).model_copy(update={"seconds": 41.5})


def make_facts(**changes) -> RunFacts:
    facts = RunFacts(
        name="demo-1",
        stage="demo",
        site="desk",
        driver="namespaces",
        substitutions=[
            Substitution(asked="ubuntu:22.04", used="debian:12 (minbase)", reason="no image registry is reached here")
        ],
        assets={"prepared states": 214, "failed set-ups": 1, "bases": 1, "median layer, bytes": 18_432},
        pins={"upstream": "1cce58a2627c39e41ab2d3033ddbb082787da23a", "seed": 1},
        configuration={"learning_rate": 1e-4, "group_size": 8, "dppo": {"divergence": "binary-tv", "threshold": 0.1}},
        limits=["Anything about the data set's own tasks or a large model: tiny policy, generated desk tasks."],
        machine={"kernel": "6.1", "cores": 2, "python": "3.11.7", "root": False},
        seconds=262.0,
    )
    return facts.model_copy(update=changes)


def write_run(folder: Path, steps: list[dict], base=None, trained=None, facts=None) -> Path:
    """Write a run folder of the given parts; base and trained are compared where both are given."""
    folder.mkdir(parents=True, exist_ok=True)
    if steps:
        (folder / "steps.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    for name, record in (("evaluation-base", base), ("evaluation-trained", trained), ("run", facts)):
        if record:
            record.write(folder / f"{name}.json")
    if base and trained:
        compare(base, trained).write(folder / "comparison.json")
    return folder


def write_full_run(folder: Path, **facts) -> Path:
    """A run that learned, with every part."""
    base = make_evaluation("runs/demo-1/base", 0.35, failing=["held-json-3"])
    return write_run(folder, make_steps(), base, make_evaluation("runs/demo-1/trained", 0.62), make_facts(**facts))


@pytest.fixture(scope="session")
def synthetic() -> SimpleNamespace:
    """The makers, for tests to call."""
    return SimpleNamespace(
        steps=make_steps, evaluation=make_evaluation, facts=make_facts, write=write_run, write_full=write_full_run
    )


@pytest.fixture(scope="session")
def full_run(tmp_path_factory) -> Path:
    """The folder of a rendered run that learned."""
    from leonardo.report.page import render_report

    folder = write_full_run(tmp_path_factory.mktemp("run"))
    render_report(folder, "Desk demonstration")
    return folder
