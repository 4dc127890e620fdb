"""Evaluation: what a harness returns becomes a record; comparison refuses what was not made alike."""

import json
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from leonardo.errors import FailureClass, InputError
from leonardo.evaluation import EvaluationRecord, attempt_seed, compare, evaluate, read_record
from leonardo.evaluation.evaluate import finished
from leonardo.stages.evaluate import evaluate_app
from leonardo.tasks.task import Task

PINS = {"driver": "namespaces", "sampling": {"temperature": 1.0, "top_p": 1.0}}
TASKS = [
    Task(id=name, instruction=f"do {name}", definition="", tests={"test.sh": b"true"}, kind=name[0])
    for name in ("a1", "a2", "b1")
]


@dataclass(frozen=True)
class Rollout:
    task_id: str
    seed: int
    reward: float | None
    failure: FailureClass | None = None


def harness(reward):
    """A harness whose rewards are ``reward(task_id, seed)``; it answers in reverse, as a pool might."""

    def run(tasks, seeds):
        for task, seed in reversed(list(zip(tasks, seeds, strict=True))):
            value = reward(task.id, seed)
            yield Rollout(task.id, seed, value, FailureClass.RUNTIME if value is None else None)

    return run


def made(reward=lambda task, seed: float(task == "a1"), **changes):
    settings = {"attempts": 2, "seed": 7, "pins": PINS, "model": "m"} | changes
    tasks = settings.pop("tasks", TASKS)
    return evaluate(harness(reward), tasks, **settings)


def test_the_record_holds_every_attempt_under_its_task_and_seed():
    record = made(lambda task, seed: float(seed == attempt_seed(7, task, 1)))
    assert [(task.task_id, task.family, task.attempts) for task in record.tasks] == [
        ("a1", "a", [0, 1]),
        ("a2", "a", [0, 1]),
        ("b1", "b", [0, 1]),
    ]
    assert record.pass_rate == 0.5
    assert record.pins["attempts"] == 2
    assert record.pins["seed"] == 7
    assert len(record.pins["tasks"]) == 64


def test_a_failure_of_the_infrastructure_is_counted_and_never_a_zero():
    record = made(lambda task, seed: None if task == "b1" else 1.0)
    assert record.pass_rate == 1.0
    assert record.infrastructure_failures == 2
    assert record.failures_by_class == {"runtime": 2}


def test_a_rollout_that_does_not_come_back_is_a_failure_of_the_infrastructure():
    record = evaluate(lambda tasks, seeds: [], TASKS, attempts=1, seed=1, pins=PINS, model="m")
    assert record.pass_rate is None
    assert record.failures_by_class == {"no-rollout": 3}
    assert record.infrastructure_failures == 3


def test_an_agent_s_failure_is_a_zero_and_counted_by_class():
    def run(tasks, seeds):
        return [Rollout(task.id, seed, 0.0, FailureClass.AGENT) for task, seed in zip(tasks, seeds, strict=True)]

    record = evaluate(run, TASKS, attempts=1, seed=1, pins=PINS, model="m")
    assert (record.pass_rate, record.infrastructure_failures, record.failures_by_class) == (0.0, 0, {"agent": 3})


def test_seeds_do_not_depend_on_the_other_tasks():
    alone = made(tasks=TASKS[2:])
    assert alone.tasks[0].seeds == made().tasks[2].seeds
    assert len({seed for task in made().tasks for seed in task.seeds}) == 6


def test_record_and_trajectories_are_written_and_read_back(tmp_path):
    calls = []
    record = made(
        output=tmp_path / "evaluation-base.json",
        to_trajectory=lambda rollout: {"task": rollout.task_id, "seed": rollout.seed},
        progress=lambda done, total: calls.append((done, total)),
    )
    assert read_record(tmp_path / "evaluation-base.json", EvaluationRecord) == record
    lines = (tmp_path / record.trajectories).read_text().splitlines()
    assert [json.loads(line)["task"] for line in lines] == ["a1", "a1", "a2", "a2", "b1", "b1"]
    assert calls[-1] == (6, 6)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "evaluation-base-trajectories.jsonl",
        "evaluation-base.json",
    ]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tasks": []}, "no tasks"),
        ({"tasks": [TASKS[0], TASKS[0]]}, "a1"),
        ({"attempts": 0}, "0 attempts"),
        ({"pins": {"driver": "namespaces"}}, "sampling"),
    ],
)
def test_bad_input_is_refused_by_name(changes, named):
    with pytest.raises(InputError, match=named):
        made(**changes)


@pytest.mark.parametrize(
    "rollouts",
    [
        [Rollout("a1", 1, 1.0)],
        [Rollout("a1", attempt_seed(7, "a1", 0), 0.5)],
        [Rollout("a1", attempt_seed(7, "a1", 0), float("nan"))],
        [Rollout("a1", attempt_seed(7, "a1", 0), 1.0)] * 2,
    ],
    ids=["unasked", "half", "not a number", "twice"],
)
def test_a_harness_that_breaks_its_word_is_found_out(rollouts):
    with pytest.raises(ValueError):
        evaluate(lambda tasks, seeds: rollouts, TASKS, attempts=1, seed=7, pins=PINS, model="m")


def test_a_record_that_was_cut_short_is_refused_by_name(tmp_path):
    path = tmp_path / "evaluation-base.json"
    made(output=path)
    path.write_text(path.read_text()[:80])
    with pytest.raises(InputError, match=r"evaluation-base\.json"):
        read_record(path, EvaluationRecord)
    with pytest.raises(InputError, match="no such file"):
        read_record(tmp_path / "other.json", EvaluationRecord)


def test_comparison_pairs_by_task_and_splits_by_family():
    base = made(lambda task, seed: None if task == "b1" else 0.0, model="warm")
    trained = made(lambda task, seed: float(task != "a2"), model="rl")
    comparison = compare(base, trained)
    assert (comparison.base_model, comparison.trained_model) == ("warm", "rl")
    assert comparison.difference.value == 0.5
    assert comparison.difference.pairs == 2
    assert comparison.difference.excluded == ["b1"]
    assert comparison.base.excluded == 2
    assert [(family.family, family.difference.value) for family in comparison.families] == [("a", 0.5), ("b", None)]


def test_the_rates_of_a_comparison_are_over_its_pairs_so_that_they_differ_by_the_difference():
    base = made(lambda task, seed: None if task == "b1" else float(task == "a1"))
    comparison = compare(base, made(lambda task, seed: 1.0 if task == "b1" else 0.0))
    assert (comparison.base.value, comparison.trained.value, comparison.difference.value) == (0.5, 0.0, -0.5)
    assert (comparison.trained.tasks, comparison.trained.excluded, comparison.base.excluded) == (2, 0, 2)


def test_comparison_does_not_depend_on_the_order_of_tasks():
    base, trained = made(), made(lambda task, seed: float(seed % 2))
    shuffled = trained.model_copy(update={"tasks": trained.tasks[::-1]})
    assert compare(base, shuffled) == compare(base, trained)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"pins": PINS | {"driver": "apptainer"}}, "pin driver"),
        ({"pins": PINS | {"sampling": {"temperature": 0.6, "top_p": 1.0}}}, r"pin sampling\.temperature"),
        ({"pins": PINS | {"prompt": "p"}}, r"pin prompt differs, \(absent\) against p"),
        ({"seed": 8}, "pin seed differs, 7 against 8"),
        ({"attempts": 3}, "pin attempts"),
        ({"tasks": TASKS[:2]}, "pin tasks"),
    ],
)
def test_comparison_under_other_pins_is_refused_and_the_pin_named(changes, named):
    with pytest.raises(InputError, match=named):
        compare(made(), made(**changes))


def test_comparison_refuses_other_seeds_or_tasks_even_where_the_pins_agree():
    base, trained = made(), made()
    reseeded = trained.tasks[0].model_copy(update={"seeds": [1, 2]})
    with pytest.raises(InputError, match="seeds of task a1"):
        compare(base, trained.model_copy(update={"tasks": [reseeded, *trained.tasks[1:]]}))
    with pytest.raises(InputError, match="task a1 differs, present against absent"):
        compare(base, trained.model_copy(update={"tasks": trained.tasks[1:]}))


def test_a_task_that_is_there_twice_is_refused() -> None:
    task = {"task_id": "t", "family": "", "attempts": [1], "seeds": [0]}
    record = {"model": "m", "pins": {"driver": "d"}, "pass_rate": 1.0, "pass_rate_ci": None}
    record |= {"infrastructure_failures": 0, "seconds": 0.0}
    EvaluationRecord.model_validate(record | {"tasks": [task]})
    with pytest.raises(ValueError, match="task t is there 2 times"):
        EvaluationRecord.model_validate(record | {"tasks": [task, task]})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"pins": {}}, "pins: Dictionary should have at least 1 item"),
        ({"pass_rate": 7}, "pass_rate: Input should be less than or equal to 1"),
        ({"pass_rate_ci": [-0.2, 1.0]}, "pass_rate_ci.0: Input should be greater than or equal to 0"),
        ({"infrastructure_failures": -1}, "infrastructure_failures: Input should be greater"),
        ({"failures_by_class": {"runtime": -3}}, "failures_by_class.runtime: Input should be greater"),
        ({"seconds": -1.0}, "seconds: Input should be greater"),
    ],
)
def test_values_that_no_evaluation_has_are_refused_by_file_and_field(tmp_path, changes, named):
    path = tmp_path / "evaluation-base.json"
    made().write(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InputError) as caught:
        read_record(path, EvaluationRecord)
    assert f"{path}: not a valid EvaluationRecord: {named}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_column_that_was_not_published_is_refused_before_anything_is_written(tmp_path):
    for name in ("base", "trained"):
        made().write(tmp_path / f"{name}.json")
    records = [str(tmp_path / f"{name}.json") for name in ("base", "trained")]
    result = CliRunner().invoke(
        evaluate_app, ["compare", *records, "--published", "nonsuch", "--out", str(tmp_path / "out")]
    )
    assert isinstance(result.exception, InputError)
    assert "nonsuch" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_a_finished_record_is_that_of_the_very_same_evaluation(tmp_path):
    path = tmp_path / "evaluation-m.json"
    asked = {"attempts": 2, "seed": 7, "pins": PINS, "weights": "w"}
    assert finished(path, TASKS, **asked) is None
    record = made(weights="w", output=path)
    assert finished(path, TASKS, **asked) == record
    for other in ({"attempts": 3}, {"seed": 8}, {"pins": PINS | {"driver": "x"}}, {"weights": "v"}):
        assert finished(path, TASKS, **asked | other) is None, other
    assert finished(path, TASKS[:2], **asked) is None
    edited = json.loads(path.read_text())
    edited["tasks"][0]["seeds"][0] += 1
    path.write_text(json.dumps(edited))
    assert finished(path, TASKS, **asked) is None, "of other seeds, with the same pins"
