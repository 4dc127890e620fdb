"""Function-calling rows as episodes, through the loop that terminal tasks go through."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from leonardo.engine.desk.faults import Faults
from leonardo.functions.checkers import Checkers
from leonardo.functions.environment import FORMAT_ERROR, FunctionWorlds, MultiTurn
from leonardo.functions.references import Turns, changed, reference
from leonardo.functions.tasks import FunctionTask
from leonardo.rollout.atif import to_atif
from leonardo.rollout.episode import EpisodeSettings, Finish, Rollout
from leonardo.rollout.episodes import run_rollouts
from leonardo.rollout.formats import QWEN3_XML, Call
from tests.rollout.scripted import ScriptedPolicy

Rows = Callable[[str], list[FunctionTask]]
SETTINGS = EpisodeSettings(steps=60, turn_tokens=10**6, context_tokens=10**7)


def script_of(task: FunctionTask, turns: Turns) -> list[str]:
    """What a policy says that makes these calls: one call a turn, then it hands over."""
    said = []
    for calls in turns:
        if task.multi_turn:
            said += [*(QWEN3_XML.render([call], task.all_tools) for call in calls), "Done."]
        else:
            said.append(QWEN3_XML.render(calls, task.tools) if calls else "There is no function for that.")
    return said


def rolled(script: Iterable[str], task: FunctionTask, checkers: Checkers) -> Rollout:
    policy = ScriptedPolicy(list(script))
    (rollout,) = run_rollouts(policy, [task], [1], FunctionWorlds(checkers), SETTINGS)
    return rollout


@pytest.mark.parametrize("category", ["simple_python", "parallel_multiple", "irrelevance", "simple_java"])
def test_a_single_turn_is_judged(checkers: Checkers, rows: Rows, category: str) -> None:
    task = rows(category)[3]
    right = rolled(script_of(task, reference(task)), task, checkers)
    assert (right.reward, right.status, right.finish, len(right.turns)) == (1.0, "passed", Finish.SUBMITTED, 1)
    assert right.parsed_actions == 1
    wrong = rolled(script_of(task, next(changed(task))), task, checkers)
    assert (wrong.reward, wrong.status) == (0.0, "failed")


def test_an_injected_failure_is_no_reward_here_either(checkers: Checkers, rows: Rows) -> None:
    task = rows("irrelevance")[0]

    def finishes(seed: int) -> list[Finish]:
        worlds = Faults(failing_sandboxes=0.3).sandboxes(FunctionWorlds(checkers), seed)
        policy = ScriptedPolicy(["There is no function for that."])
        rollouts = list(run_rollouts(policy, [task] * 40, range(40), worlds, SETTINGS))
        for rollout in rollouts:
            lost = rollout.finish is Finish.INFRASTRUCTURE
            assert rollout.reward == (None if lost else 1.0) and ("injected" in rollout.failure_reason) is lost
        return [rollout.finish for rollout in rollouts]

    assert 5 < finishes(1).count(Finish.INFRASTRUCTURE) < 20
    assert finishes(1) == finishes(1) != finishes(2)


@pytest.mark.parametrize("category", ["multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param"])
def test_a_conversation_is_executed_and_judged(checkers: Checkers, rows: Rows, category: str) -> None:
    task = rows(category)[0]
    turns = reference(task)
    right = rolled(script_of(task, turns), task, checkers)
    assert (right.reward, right.status, right.finish) == (1.0, "passed", Finish.SUBMITTED)
    assert len(right.turns) == sum(len(calls) + 1 for calls in turns)
    assert "document" in right.turns[0].observation  # what the service said
    requests = [turn.observation for turn in right.turns if turn.calls == ()]
    assert requests == [task.request(number) for number in range(1, len(turns))] + [""]
    wrong = rolled(script_of(task, next(changed(task))), task, checkers)
    assert wrong.reward == 0.0


def test_functions_that_come_later_are_offered_with_the_request(checkers: Checkers, rows: Rows) -> None:
    task = rows("multi_turn_miss_func")[0]
    (turn,) = task.row["missed_function"]
    (missed,) = {function["name"] for function in task.row["missed_function"][turn]}
    assert missed not in {tool["function"]["name"] for tool in task.tools}
    assert f'"name": "{missed}"' in task.request(int(turn))


def test_a_call_that_is_begun_and_not_ended_is_wrong_and_no_action(checkers: Checkers, rows: Rows) -> None:
    task = rows("irrelevance")[0]
    rollout = rolled(["<tool_call>\n<function=f>"], task, checkers)
    assert (rollout.reward, rollout.parsed_actions) == (0.0, 0)
    talk = rows("multi_turn_base")[0]
    rollout = rolled(["<tool_call>", *script_of(talk, reference(talk))], talk, checkers)
    assert rollout.turns[0].observation == FORMAT_ERROR
    assert rollout.reward == 1.0


def test_what_is_no_function_of_the_row_is_answered_and_not_executed(checkers: Checkers, rows: Rows) -> None:
    task = rows("multi_turn_base")[0]
    stray = QWEN3_XML.render([Call("open", {"file": "/etc/passwd"})])
    rollout = rolled([stray, *script_of(task, reference(task))], task, checkers)
    assert rollout.turns[0].observation == "Error: no function is called so: open(file)"
    assert rollout.reward == 1.0


def test_a_call_that_hangs_costs_its_own_episode_only(checkers: Checkers, rows: Rows) -> None:
    task = rows("multi_turn_base")[0]
    environment = MultiTurn(task, lambda: Checkers(timeout=0.001), SETTINGS.rules)
    environment.reset()
    outcome = environment.act(script_of(task, reference(task))[0], QWEN3_XML)
    environment.close()
    assert (outcome.done, outcome.reward, outcome.status) == (True, 0.0, "timeout")


def test_what_the_package_cannot_judge_is_a_zero_under_its_own_name(checkers: Checkers, rows: Rows) -> None:
    task = rows("simple_python")[0]
    task = replace(task, row={**task.row, "answer": []})
    rollout = rolled(script_of(task, [[Call("calculate_triangle_area", {"base": 1})]]), task, checkers)
    assert (rollout.reward, rollout.status) == (0.0, "broken")


def test_a_trajectory_names_functions_and_arguments(checkers: Checkers, rows: Rows) -> None:
    task = rows("parallel")[0]
    document = to_atif(rolled(script_of(task, reference(task)), task, checkers))
    assert document["agent"]["tool_definitions"] == task.tools
    calls = document["steps"][-1]["tool_calls"]
    assert [call["function_name"] for call in calls] == ["spotify.play", "spotify.play"]
    assert calls[0]["arguments"] == {"artist": "Taylor Swift", "duration": 20}
    assert len({call["tool_call_id"] for call in calls}) == 2
