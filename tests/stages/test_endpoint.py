"""Evaluation through an OpenAI-compatible endpoint: a real server, real sandboxes, the same record as on the desk."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from leonardo.errors import InfrastructureError, InputError
from leonardo.evaluation import EvaluationRecord, compare, read_record
from leonardo.evaluation import chat as chat_module
from leonardo.evaluation.chat import Endpoint
from leonardo.evaluation.parts import join_files, part_files
from leonardo.rollout.formats import QWEN3_XML
from leonardo.rollout.prompts import FORMAT_ERROR, SUBMIT_COMMAND, SYSTEM_PROMPT
from leonardo.rollout.tool_calls import render_tool_call
from leonardo.sandbox.driver import Driver
from leonardo.site import Site
from leonardo.stages.endpoint import BOUNDS, EndpointRun, evaluate_endpoint
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files
from tests.evaluation.server import Answer, Server, idler, serving, solver, turn_of

TRUE = {"name": "bash", "arguments": '{"command": "true"}'}
SETTINGS = replace(BOUNDS["desk"], steps=4)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_module, "_FIRST_WAIT", 0.01)
    monkeypatch.setattr(chat_module, "_LONGEST_WAIT", 0.02)


@pytest.fixture
def run(tmp_path: Path, site: Site, driver: Driver, make_task):
    """Evaluate tasks of which each wants its own file; ``changes`` go into the run."""

    def evaluate(server: Server, count: int = 2, **changes) -> EvaluationRecord:
        tasks = [wanting(make_task, number) for number in range(count)]
        asked = {name: changes.pop(name) for name in ("calls", "retries", "key") if name in changes}
        settings = {
            "endpoint": Endpoint(server.url, "small", **asked), "settings": SETTINGS, "tool_format": QWEN3_XML,
            "record": tmp_path / "evaluation-m.json", "name": "m", "concurrency": 2,
        }  # fmt: skip
        return evaluate_endpoint(
            EndpointRun(**settings | changes), tasks, site=tmp_path / "site.yaml", driver_name="auto", jobs=1,
            console=Console(quiet=True),
        )  # fmt: skip

    return evaluate


def wanting(make_task, number: int) -> Task:
    tests = verifier_files(f"#!/bin/bash\n[[ -e /made/{number} ]]\n")
    return make_task("", f"t{number}", instruction=f"Run mkdir -p /made && touch /made/{number}", tests=tests)


def trajectories(tmp_path: Path) -> list[dict]:
    return [json.loads(line) for line in (tmp_path / "evaluation-m-trajectories.jsonl").read_text().splitlines()]


def test_a_policy_that_solves_passes_and_the_record_is_that_of_the_desk(tmp_path, run):
    with serving(solver) as server:
        record = run(server, attempts=2, key="secret")
    assert [task.attempts for task in record.tasks] == [[1, 1], [1, 1]]
    assert read_record(tmp_path / "evaluation-m.json", EvaluationRecord) == record
    assert set(record.pins) == {
        "driver", "sampling", "limits", "harness", "assets", "interface", "tasks", "attempts", "seed",
    }  # fmt: skip
    request = server.requests[0]
    assert request["messages"][0] == {"role": "system", "content": SYSTEM_PROMPT}
    assert (request["tools"][0]["function"]["name"], request["tool_choice"]) == ("bash", "auto")
    assert set(server.keys) == {"Bearer secret"}
    assert len({request["seed"] for request in server.requests}) == len(server.requests) == 8
    second = next(request for request in server.requests if turn_of(request) == 1)
    assert second["messages"][-1] == {"role": "tool", "tool_call_id": "c1", "content": "(no output)\n\n(exit_code=0)"}
    assert second["messages"][-2]["tool_calls"][0]["function"]["name"] == "bash"
    steps = trajectories(tmp_path)[0]["steps"]
    assert [step["source"] for step in steps] == ["system", "user", "agent", "agent"]
    written = "".join(path.read_text() for path in tmp_path.glob("*.json*"))
    assert "secret" not in written


def test_calls_in_the_text_are_read_by_the_family_s_parser(run):
    def policy(request):
        answer = solver(request)
        call = render_tool_call(answer.command)
        return Answer(f"<think>\nNot {render_tool_call('true')}\n</think>\n{call}")

    with serving(policy) as server:
        record = run(server, calls="text")
    assert record.pass_rate == 1.0
    assert {request["tool_choice"] for request in server.requests} == {"none"}


def test_base_and_trained_are_compared_as_on_the_desk(tmp_path, run):
    with serving(idler) as server:
        base = run(server, name="base", record=tmp_path / "base.json")
    with serving(solver) as server:
        trained = run(server, name="trained", record=tmp_path / "trained.json")
    assert compare(base, trained).difference.value == 1.0


def test_parts_give_the_record_of_one_piece(tmp_path, run):
    with serving(solver) as server:
        whole = run(server, count=3, attempts=2)
        for number in (1, 2):
            run(
                server, count=3, attempts=2, part=(number, 2), record=tmp_path / f"evaluation-m-part-{number}-of-2.json"
            )
    assert len(server.requests) == 24  # two turns an attempt, in parts as in one piece
    joined = join_files(part_files(tmp_path, "m"), tmp_path / "joined.json")
    own = {"seconds": 0.0, "trajectories": ""}
    assert joined.model_copy(update=own) == whole.model_copy(update=own)
    assert joined.pins["interface"].startswith("chat-completions")


@pytest.mark.parametrize(
    "wrong",
    [
        Answer("I would rather talk."),
        Answer("", message={"tool_calls": [{"id": "a", "function": {"name": "python", "arguments": "{}"}}]}),
        Answer("", message={"tool_calls": [{"id": "a", "function": {"name": "bash", "arguments": "{"}}]}),
        Answer("", message={"tool_calls": [{"id": number, "function": TRUE} for number in ("1", "2")]}),
        Answer("", command=" "),
    ],
    ids=["none", "another tool", "no JSON", "two", "empty"],
)
def test_a_turn_without_one_valid_call_is_told_so_and_counts_as_a_turn(run, wrong):
    with serving(lambda request: wrong if turn_of(request) == 0 else Answer("", SUBMIT_COMMAND)) as server:
        record = run(server, count=1)
    assert record.tasks[0].attempts == [0]
    told = server.requests[1]["messages"][3:]
    assert [message["content"] for message in told] == [FORMAT_ERROR] * max(1, len(wrong.message.get("tool_calls", ())))
    assert [message["tool_call_id"] for message in told] == [
        call["id"] for call in wrong.message.get("tool_calls", ())
    ] or not wrong.message


@pytest.mark.parametrize(
    ("answer", "turns"),
    [
        (Answer("", "true"), 4),  # the limit of turns
        (Answer("cut", finish="length"), 1),
        (Answer("", "true", usage={"prompt_tokens": 460, "completion_tokens": 5}), 1),
        (Answer("This model's maximum context length is 512 tokens.", status=400), 1),
    ],
    ids=["turns", "turn's tokens", "context by count", "context by refusal"],
)
def test_the_limits_of_an_episode_are_the_agent_s_to_keep(run, answer, turns):
    with serving(lambda request: answer) as server:
        record = run(server, count=1)
    assert (record.tasks[0].attempts, record.infrastructure_failures) == ([0], 0)
    assert len(server.requests) == turns


def test_what_fails_for_a_while_is_asked_again_and_is_no_failure(run):
    left = [Answer("busy", status=503), Answer("slow", status=429, headers={"retry-after": "0.01"}), Answer(status=0)]
    with serving(lambda request: left.pop() if left else solver(request)) as server:
        record = run(server, count=1)
    assert (record.tasks[0].attempts, record.failures_by_class) == ([1], {})
    assert len(server.requests) == 2 + 3


def test_an_answer_that_is_none_is_asked_for_again(run, monkeypatch):
    left = [{"choices": []}, {}]
    whole = sys.modules["tests.evaluation.server"]._completion
    monkeypatch.setattr("tests.evaluation.server._completion", lambda answer: left.pop() if left else whole(answer))
    with serving(solver) as server:
        assert run(server, count=1).pass_rate == 1.0


def test_an_attempt_that_the_server_loses_has_no_verdict_and_the_next_run_makes_up_for_it(tmp_path, run):
    def policy(request):
        lost = "/made/1" in request["messages"][1]["content"]
        return Answer("broken", status=500) if lost else solver(request)

    with serving(policy) as server:
        record = run(server, count=3, retries=1)
    assert [task.attempts for task in record.tasks] == [[1], [None], [1]]
    assert (record.pass_rate, record.infrastructure_failures) == (1.0, 1)
    assert record.failures_by_class == {"endpoint": 1}
    with serving(solver) as server:
        again = run(server, count=3)
    assert [task.attempts for task in again.tasks] == [[1], [1], [1]]
    assert len(server.requests) == 2  # the lost attempt alone


def test_a_server_that_is_gone_ends_the_run_in_one_line(run):
    with serving(solver) as server:
        pass
    with pytest.raises(InfrastructureError, match=r"3 attempts in a row were lost .* goes on from here"):
        run(server, count=6, retries=0, concurrency=1)


@pytest.mark.parametrize(
    ("said", "hint"),
    [("The model `small` does not exist.", "server's log"), ('"auto" tool choice requires a parser', "--calls text")],
)
def test_what_the_server_refuses_is_said_once_with_what_to_do(run, said, hint):
    with serving(lambda request: Answer(said, status=404)) as server, pytest.raises(InputError, match=hint):
        run(server, count=6)
    assert len(server.requests) <= 2


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://a/v1", "http://"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(InputError, match="no address"):
        Endpoint(url, "small")


def test_another_evaluation_s_journal_is_not_gone_on_with(run):
    with serving(solver) as server:
        run(server, count=1)
        with pytest.raises(InputError, match=r"another evaluation: sampling\.temperature was 1\.0 and is 0\.5"):
            run(server, count=1, temperature=0.5)


def test_after_kill_9_finished_attempts_are_not_made_again(tmp_path, site, driver):
    """The command itself, killed in the middle; what a kill cut off in the journal is no attempt."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(
            json.dumps({
                "task_id": f"t{number}", "description": f"Run mkdir -p /made && touch /made/{number}",
                "container_def": "Bootstrap: docker\nFrom: tiny:1\n",
                "test_final_state": f"#!/bin/bash\n[[ -e /made/{number} ]]\n",
            }) + "\n" for number in range(4)
        )
    )  # fmt: skip
    record = tmp_path / "evaluation-m.json"
    journal = tmp_path / "evaluation-m-attempts.jsonl"

    def slow(request):
        time.sleep(0.2)
        return solver(request)

    with serving(slow) as server:
        command = [
            sys.executable, "-m", "leonardo.cli", "evaluate", "run", "--tasks", rows, "--endpoint", server.url,
            "--model", "small", "--record", record, "--bounds", "desk", "--concurrency", "1",
            "--site", tmp_path / "site.yaml",
        ]  # fmt: skip
        command = [*map(str, command)]
        first = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[2])
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (journal.exists() and journal.read_text().count("\n") >= 2):
            time.sleep(0.02)
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        finished = [json.loads(line) for line in journal.read_text().splitlines()[1:]]
        assert 1 <= len(finished) < 4
        with journal.open("a") as stream:
            stream.write('{"task_id": "t3", "rew')
        asked = len(server.requests)
        result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=60)
    assert result.returncode == 0, result.stderr
    assert f"{len(finished)} attempts were finished before" in result.stdout
    assert "small: 100.0 % of 4 tasks" in result.stdout
    again = Counter(request["messages"][1]["content"] for request in server.requests[asked:])
    assert len(again) == 4 - len(finished)
    assert [task.attempts for task in read_record(record, EvaluationRecord).tasks] == [[1]] * 4
    assert len((tmp_path / "evaluation-m-trajectories.jsonl").read_text().splitlines()) == 4


def test_two_processes_do_not_write_one_journal(tmp_path, run):
    from leonardo.evaluation.journal import Journal

    with (
        serving(solver) as server,
        Journal(tmp_path / "evaluation-m-attempts.jsonl", {}),
        pytest.raises(InputError, match="is being written"),
    ):
        run(server, count=1)
