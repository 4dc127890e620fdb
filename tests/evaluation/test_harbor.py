"""Job folders of Harbor become records: verdicts count, what has none is excluded and counted, never a failure."""

import json
from pathlib import Path

import pytest

from leonardo.errors import InputError
from leonardo.evaluation import compare
from leonardo.evaluation.comparability import reasons
from leonardo.evaluation.harbor import import_job
from leonardo.evaluation.published import load_published
from tests.evaluation.jobs import write_job, write_trial

UPSTREAM = Path(__file__).parents[2] / "upstream" / "evaluation_assets" / "daytona"
BASES = {"Qwen3.5-2B": "Qwen 3.5 2B", "Qwen3.5-4B": "Qwen 3.5 4B", "Qwen3.5-9B": "Qwen 3.5 9B"}
TRAINED = {"tmax-2b": "TMAX-2B", "tmax-4b": "TMAX-4B", "tmax-9b": "TMAX-9B", "tmax-27b": "TMAX-27B"}
PUBLISHED = BASES | TRAINED | {"Qwen3.6-27B": "Qwen 3.6 27B"}


def test_rewards_become_attempts_by_task_in_the_order_of_the_trials(tmp_path):
    job = import_job(write_job(tmp_path / "job", {"b": [0.0, 1.0], "a": [1.0, 1.0]}))
    assert [(task.task_id, task.family, task.attempts) for task in job.record.tasks] == [
        ("a", "own-bench", [1, 1]),
        ("b", "own-bench", [0, 1]),
    ]
    assert (job.record.model, job.record.pass_rate, job.trials, job.record.seconds) == ("small", 0.75, 4, 61.0)
    assert job.record.pins["harbor"] == "0.6.6"


def test_a_reward_is_a_verdict_whatever_ended_the_trial(tmp_path):
    job = import_job(write_job(tmp_path / "job", {"a": ["AgentTimeoutError:1.0", "AgentTimeoutError:0.0"]}))
    assert job.record.tasks[0].attempts == [1, 0]
    assert job.record.infrastructure_failures == 0
    assert job.record.failures_by_class == {"AgentTimeoutError": 2}


def test_without_a_reward_only_the_agent_s_own_exceptions_are_failures(tmp_path):
    trials = {"a": ["AgentTimeoutError", "DaytonaError"], "b": ["VerifierTimeoutError", None], "c": [1.0, 0.0]}
    job = import_job(write_job(tmp_path / "job", trials))
    assert [task.attempts for task in job.record.tasks] == [[0, None], [None, None], [1, 0]]
    assert job.record.infrastructure_failures == 3
    assert job.record.pass_rate == 0.25  # a: 0, c: 1/2; b has no verdict
    assert job.as_harbor_counts == pytest.approx(1 / 6)
    assert job.record.failures_by_class == {
        "AgentTimeoutError": 1, "DaytonaError": 1, "VerifierTimeoutError": 1, "no-reward": 1,
    }  # fmt: skip
    strict = import_job(tmp_path / "job", agent_exceptions={"VerifierTimeoutError"})
    assert [task.attempts for task in strict.record.tasks] == [[None, None], [0, None], [1, 0]]


def test_trials_that_are_missing_or_unfinished_are_no_failures_of_the_agent(tmp_path):
    folder = write_job(tmp_path / "job", {"a": [1.0], "b": [0.0, 1.0]}, attempts=3)
    (write_trial(folder, "b", 2, 1.0) / "result.json").unlink()
    job = import_job(folder)
    assert [task.attempts for task in job.record.tasks] == [[1, None, None], [0, 1, None]]
    assert job.record.failures_by_class == {"no-result": 1, "no-trial": 2}
    assert job.record.infrastructure_failures == 3


def test_base_and_trained_can_be_compared_though_they_are_served_elsewhere(tmp_path):
    base = write_job(tmp_path / "base", {"a": [0.0, 0.0], "bb": [0.0, 1.0]})
    trained = write_job(tmp_path / "trained", {"a": [1.0, 1.0], "bb": [0.0, None]}, model="small-rl")
    comparison = compare(import_job(base).record, import_job(trained).record)
    assert (comparison.base_model, comparison.trained_model) == ("small", "small-rl")
    assert comparison.difference.value == 0.25


def test_other_tasks_or_time_limits_or_agents_are_named_as_reasons(tmp_path):
    base = import_job(write_job(tmp_path / "base", {"a": [0.0], "bb": [0.0]})).record
    other = import_job(write_job(tmp_path / "other", {"a": [1.0]}, attempts=3, task_checksum="f" * 64)).record
    found = reasons(base, other)
    assert any(reason.startswith("the tasks: ") for reason in found)
    assert "attempts a task: 2 against 3" in found
    assert "1 tasks stand on one side only, such as bb" in found
    with pytest.raises(InputError, match="pin attempts differs"):
        compare(base, other)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"agent_info": {"name": "mine", "model_info": {"name": "other"}}}, "several models: other, small"),
        ({"config": {"environment": {"type": "daytona"}}}, "several settings, as in a__0 and a__1"),
        ({"task_checksum": "1" * 64}, "several versions of one task"),
        ({"verifier_result": {"rewards": {"x": 1.0, "y": 0.0}}}, "a__1 has no reward reward. Name one of x, y"),
        ({"task_name": None}, r"a__1/result\.json is no trial result of Harbor: task_name"),
    ],
)
def test_what_makes_no_one_record_is_named(tmp_path, change, named):
    folder = write_job(tmp_path / "job", {"a": [1.0]})
    write_trial(folder, "a", 1, 1.0, **change)
    with pytest.raises(InputError, match=named):
        import_job(folder)


def test_a_folder_that_is_none_or_holds_no_trials_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        import_job(tmp_path / "nowhere")
    write_job(tmp_path / "jobs" / "one", {"a": [1.0]})
    with pytest.raises(InputError, match="holds no trial"):
        import_job(tmp_path / "jobs")
    (tmp_path / "jobs" / "one" / "a__0" / "result.json").write_text("{")
    with pytest.raises(InputError, match=r"a__0/result\.json is no trial result"):
        import_job(tmp_path / "jobs" / "one")


def test_of_several_rewards_the_named_one_counts_from_a_threshold(tmp_path):
    folder = write_job(tmp_path / "job", {})
    write_trial(folder, "a", 0, None, verifier_result={"rewards": {"tests": 0.75, "style": 0.1}})
    assert import_job(folder, reward="tests").record.tasks[0].attempts == [0, None]
    assert import_job(folder, reward="tests", pass_at=0.5).record.tasks[0].attempts == [1, None]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_authors_own_job_folders_give_the_published_figures(name):
    folder = UPSTREAM / name / "terminal-bench-2-0"
    if not folder.is_dir():
        pytest.skip("upstream's evaluation_assets are not checked out (make upstream leaves them out)")
    table = load_published()
    job = import_job(folder)
    published = {result.model: result for result in table.results if result.benchmark == "terminal-bench-2.0"}
    assert 100 * job.as_harbor_counts == pytest.approx(
        published[PUBLISHED[name]].percent, abs=0.06
    )  # 2.25 was printed as 2.3
    said = [reason for reason in reasons(job.record, table.benchmark("terminal-bench-2.0")) if "not said" not in reason]
    assert [reason for reason in said if "without a verdict" not in reason] == []
    assert json.loads(json.dumps(job.record.pins)) == job.record.pins
