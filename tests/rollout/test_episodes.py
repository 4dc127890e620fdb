from collections.abc import Callable

import pytest

from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InfrastructureError
from leonardo.rollout.environment import RESET_TRIES
from leonardo.rollout.episode import EpisodeSettings, Finish
from leonardo.rollout.episodes import run_rollouts
from leonardo.rollout.prompts import FORMAT_ERROR
from leonardo.sandbox.backend import SandboxBackend
from leonardo.sandbox.driver import Driver
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files
from tests.rollout.scripted import UNFINISHED, ScriptedPolicy, calls

SETTINGS = EpisodeSettings(steps=3, context_tokens=4000, live=3, threads=2, command_timeout=5, verifier_timeout=5)
VERIFIER = '#!/bin/bash\n[ "$(cat /workspace/answer)" = yes ]\n'


@pytest.fixture
def world(store: AssetStore, driver: Driver, make_task: Callable[..., Task]):
    """(task, make_backend, list of every sandbox made)."""
    task = make_task("true", tests=verifier_files(VERIFIER), kind="answers")
    (entry,) = store.build([task])
    assert entry.failure is None, entry.reason
    made: list[SandboxBackend] = []

    def make_backend(wanted: Task) -> SandboxBackend:
        made.append(driver.backend(store.prepared(wanted).stack))
        return made[-1]

    return task, make_backend, made


def rollouts_of(world, script, count=1, settings=SETTINGS, **options):
    task, make_backend, _ = world
    policy = ScriptedPolicy(script)
    return list(run_rollouts(policy, [task] * count, range(count), make_backend, settings, **options))


def test_a_rollout_keeps_the_policys_tokens_and_marks_them(world):
    script = calls("echo yes > answer")
    (rollout,) = rollouts_of(world, script)
    assert (rollout.reward, rollout.finish, rollout.status) == (1.0, Finish.SUBMITTED, "passed")
    assert (rollout.task_id, rollout.family, rollout.failure) == ("t1", "answers", None)
    said = "".join(chr(token) for token, own in zip(rollout.tokens, rollout.response_mask, strict=True) if own)
    assert said == "".join(turn + "\0" for turn in script)
    shown = "".join(chr(token) for token, own in zip(rollout.tokens, rollout.response_mask, strict=True) if not own)
    assert shown.endswith("Do it.(no output)\n\n(exit_code=0)")
    assert {p for p, own in zip(rollout.logprobs, rollout.response_mask, strict=True) if own} == {-0.5}
    assert {p for p, own in zip(rollout.logprobs, rollout.response_mask, strict=True) if not own} == {0.0}
    assert rollout.turns[0].command == "echo yes > answer"
    assert rollout.parsed_actions == 2


def test_a_wrong_answer_is_reward_zero(world):
    (rollout,) = rollouts_of(world, calls("echo no > answer"))
    assert (rollout.reward, rollout.status) == (0.0, "failed")


def test_a_format_error_is_told_and_runs_nothing(world):
    (rollout,) = rollouts_of(world, ["echo yes > answer", *calls()])
    assert rollout.turns[0].command is None
    assert rollout.turns[0].observation == FORMAT_ERROR
    assert (rollout.parsed_actions, rollout.reward) == (1, 0.0)


def test_an_episode_without_submission_ends_at_the_step_limit_with_zero(world):
    (rollout,) = rollouts_of(world, calls("true", "true", "true"))
    assert (rollout.finish, rollout.reward, len(rollout.turns)) == (Finish.STEP_LIMIT, 0.0, 3)


def test_a_turn_that_does_not_end_ends_the_episode(world):
    (rollout,) = rollouts_of(world, [UNFINISHED])
    assert (rollout.finish, rollout.reward, len(rollout.turns)) == (Finish.LENGTH, 0.0, 1)


def test_a_full_context_ends_the_episode(world):
    settings = EpisodeSettings(steps=3, turn_tokens=100, context_tokens=250, live=1, threads=1)
    (rollout,) = rollouts_of(world, calls("true", "true"), settings=settings)
    assert (rollout.finish, rollout.reward) == (Finish.LENGTH, 0.0)
    assert len(rollout.turns) == 1


def test_more_episodes_than_may_live_at_once_come_in_order_with_their_seeds_and_groups(world):
    rollouts = rollouts_of(world, calls("echo yes > answer"), count=7, groups=[0, 0, 0, 0, 1, 1, 1])
    assert [rollout.seed for rollout in rollouts] == list(range(7))
    assert [rollout.group for rollout in rollouts] == [0, 0, 0, 0, 1, 1, 1]
    assert all(rollout.reward == 1.0 for rollout in rollouts)
    assert all(rollout.times.destroy > 0 for rollout in rollouts)


class BrokenBackend(SandboxBackend):
    """A sandbox that starts as often as it is let, and fails its n-th command."""

    def __init__(self, inner: SandboxBackend, starts: bool = True, commands: int = 99) -> None:
        self.inner, self.starts, self.commands = inner, starts, commands

    def start(self):
        if not self.starts:
            raise InfrastructureError("no start", failure=FailureClass.SPACE)
        self.inner.start()

    def run_command(self, command, timeout=None):
        self.commands -= 1
        if self.commands < 0:
            raise InfrastructureError("the channel broke", failure=FailureClass.RUNTIME)
        return self.inner.run_command(command, timeout)

    def write_file(self, path, content):
        self.inner.write_file(path, content)

    def read_file(self, path, binary=False):
        return self.inner.read_file(path, binary)

    def put_archive(self, root, tar_bytes):
        self.inner.put_archive(root, tar_bytes)

    def close(self):
        self.inner.close()


@pytest.mark.parametrize("commands", [1, 2, 3, 4])  # preparation passes; then command, submission, verification break
def test_an_infrastructure_failure_is_never_a_reward(world, commands):
    task, make_backend, _ = world
    made = []

    def breaking(wanted):
        made.append(BrokenBackend(make_backend(wanted), commands=commands if not made else 99))
        return made[-1]

    policy = ScriptedPolicy(calls("echo yes > answer"))
    settings = EpisodeSettings(steps=3, context_tokens=4000, live=2, threads=1)
    first, second = run_rollouts(policy, [task, task], [1, 2], breaking, settings)
    assert (first.reward, first.failure, first.finish) == (None, FailureClass.RUNTIME, Finish.INFRASTRUCTURE)
    assert first.failure_reason.startswith("the channel broke")
    assert (second.reward, second.failure) == (1.0, None)


def test_a_reset_is_tried_again_then_given_up_without_a_reward(world):
    task, make_backend, _ = world
    tries = []

    def refusing(wanted, lucky=10**6):
        tries.append(BrokenBackend(make_backend(wanted), starts=len(tries) + 1 >= lucky))
        return tries[-1]

    policy = ScriptedPolicy(calls("echo yes > answer"))
    (rollout,) = run_rollouts(policy, [task], [1], refusing, SETTINGS)
    assert (rollout.reward, rollout.failure, rollout.turns) == (None, FailureClass.SPACE, ())
    assert len(tries) == RESET_TRIES
    tries.clear()
    (rollout,) = run_rollouts(policy, [task], [1], lambda wanted: refusing(wanted, lucky=RESET_TRIES), SETTINGS)
    assert rollout.reward == 1.0


def test_sandboxes_are_closed_when_the_policy_fails(world):
    task, make_backend, made = world

    class FailingPolicy(ScriptedPolicy):
        def generate(self, contexts, seeds, limit):
            if seeds[0][1] == 1:
                raise KeyboardInterrupt
            return super().generate(contexts, seeds, limit)

    with pytest.raises(KeyboardInterrupt):
        list(run_rollouts(FailingPolicy(calls("true")), [task] * 2, [1, 2], make_backend, SETTINGS))
    assert len(made) == 2
    for backend in made:
        with pytest.raises(RuntimeError):
            backend.run_command("true")
