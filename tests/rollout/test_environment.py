from collections.abc import Callable, Iterator

import pytest

from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InfrastructureError
from leonardo.rollout.environment import RESET_TRIES, TerminalEnvironment
from leonardo.rollout.prompts import SUBMIT_COMMAND
from leonardo.sandbox.backend import SandboxBackend, SandboxOOMError
from leonardo.sandbox.driver import Driver
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files

VERIFIER = '#!/bin/bash\n[ "$(cat /workspace/answer)" = yes ]\n'


@pytest.fixture
def open_environment(
    store: AssetStore, driver: Driver, make_task: Callable[..., Task]
) -> Iterator[Callable[..., TerminalEnvironment]]:
    opened: list[TerminalEnvironment] = []

    def open_one(post: str = "true", verifier: str = VERIFIER, **fields: object) -> TerminalEnvironment:
        task = make_task(post, tests=verifier_files(verifier), **fields)
        (entry,) = store.build([task])
        assert entry.failure is None, entry.reason
        environment = TerminalEnvironment(
            task, lambda wanted: driver.backend(store.prepared(wanted).stack), command_timeout=5, verifier_timeout=5
        )
        environment.reset()
        opened.append(environment)
        return environment

    yield open_one
    for environment in opened:
        environment.close()


def test_an_episode_from_reset_to_reward(open_environment):
    environment = open_environment()
    outcome = environment.step("echo yes > answer; pwd")
    assert (outcome.observation, outcome.exit_code, outcome.done) == ("/app\n\n\n(exit_code=0)", 0, False)
    outcome = environment.step(SUBMIT_COMMAND)
    assert (outcome.done, outcome.reward, outcome.status) == (True, 1.0, "passed")
    assert environment.times.reset > 0
    assert len(environment.times.commands) == 2
    assert environment.times.verify > 0


def test_a_wrong_final_state_is_zero_and_no_error(open_environment):
    outcome = open_environment().step(SUBMIT_COMMAND)
    assert (outcome.done, outcome.reward, outcome.status) == (True, 0.0, "failed")


def test_folder_and_variables_persist(open_environment):
    environment = open_environment()
    environment.step("mkdir -p /tmp/deep && cd /tmp/deep && export COLOUR='dark blue' && plain=1")
    assert environment.step('pwd; echo "$COLOUR"').observation.startswith("/tmp/deep\ndark blue\n")
    environment.step("cd /; exit 7")
    assert environment.step("pwd").observation.startswith("/tmp/deep\n")  # a shell that was left saves nothing
    environment.step("cd /tmp && rmdir /tmp/deep && cd /nowhere")
    assert environment.step("pwd").observation.startswith("/tmp\n")


def test_exit_codes_and_stderr_are_shown(open_environment):
    outcome = open_environment().step("echo out; echo err >&2; false")
    assert outcome.observation == "out\n\nerr\n\n\n(exit_code=1)"
    assert outcome.exit_code == 1


def test_tests_are_absent_until_submission(open_environment):
    environment = open_environment()
    assert environment.step("ls /tests").exit_code != 0
    assert environment.step("ls /logs/verifier | wc -l").observation.startswith("0\n")


def test_a_reward_that_the_agent_wrote_does_not_count(open_environment):
    environment = open_environment()
    environment.step("mkdir -p /tests; echo 'exit 0' > /tests/test.sh; echo 1 > /logs/verifier/reward.txt")
    assert environment.step(SUBMIT_COMMAND).reward == 0.0


def test_seeds_are_in_the_workspace(open_environment):
    environment = open_environment(seeds={"data/in.txt": b"seed\n"})
    assert environment.step("cat /workspace/data/in.txt").observation.startswith("seed\n")


def test_services_live_until_the_verifier_has_seen_them(open_environment):
    environment = open_environment(verifier="#!/bin/bash\nkill -0 $(cat /tmp/pid)\n")
    environment.step("setsid sleep 100 > /dev/null 2>&1 < /dev/null & echo $! > /tmp/pid")
    assert environment.step(SUBMIT_COMMAND).reward == 1.0


def test_a_verifier_that_the_agent_broke_is_zero_under_its_own_name(open_environment):
    outcome = open_environment(verifier="#!/no/such/interpreter\n").step(SUBMIT_COMMAND)
    assert (outcome.reward, outcome.status) == (0.0, "broken")


def test_a_command_that_takes_too_long_is_ended_and_said(open_environment):
    outcome = open_environment().step("echo before; sleep 60 & wait")
    assert outcome.exit_code == 124
    assert "before" in outcome.observation
    assert not outcome.done


class FailingBackend(SandboxBackend):
    """Fails in one method, as a broken machine would."""

    def __init__(self, method: str, error: Exception) -> None:
        self._method, self._error, self.closed = method, error, 0

    def _do(self, method: str) -> None:
        if method == self._method:
            raise self._error

    def start(self):
        self._do("start")

    def run_command(self, command, timeout=None):
        self._do("run_command")

    def write_file(self, path, content):
        self._do("write_file")

    def read_file(self, path, binary=False):
        self._do("read_file")

    def put_archive(self, root, tar_bytes):
        self._do("put_archive")

    def close(self):
        self.closed += 1


def test_a_failing_reset_is_tried_again_and_then_an_infrastructure_failure(make_task):
    made: list[FailingBackend] = []

    def make_backend(task: Task) -> SandboxBackend:
        made.append(FailingBackend("start", InfrastructureError("disk full", failure=FailureClass.SPACE)))
        return made[-1]

    with pytest.raises(InfrastructureError, match="disk full") as caught:
        TerminalEnvironment(make_task("true"), make_backend).reset()
    assert caught.value.failure is FailureClass.SPACE
    assert len(made) == RESET_TRIES
    assert all(backend.closed for backend in made)


@pytest.mark.parametrize("method", ["run_command"])
def test_a_failing_sandbox_never_gives_a_reward(open_environment, monkeypatch, method):
    environment = open_environment()
    monkeypatch.setattr(environment, "_backend", FailingBackend(method, InfrastructureError("gone")))
    with pytest.raises(InfrastructureError, match="gone"):
        environment.step(SUBMIT_COMMAND)


def test_an_upload_that_fails_never_gives_a_reward(open_environment, monkeypatch):
    environment = open_environment()

    def fail(root, tar_bytes):
        raise InfrastructureError("gone")

    monkeypatch.setattr(environment._backend, "put_archive", fail)
    with pytest.raises(InfrastructureError, match="gone"):
        environment.step(SUBMIT_COMMAND)


def test_out_of_memory_is_the_agents_doing_and_zero(open_environment, monkeypatch):
    environment = open_environment()
    monkeypatch.setattr(environment, "_backend", FailingBackend("run_command", SandboxOOMError("too much memory")))
    outcome = environment.step("hog")
    assert (outcome.done, outcome.reward, outcome.status) == (True, 0.0, "out-of-memory")


def test_without_a_reset_there_is_no_step(make_task):
    with pytest.raises(RuntimeError, match="reset"):
        TerminalEnvironment(make_task("true"), lambda task: FailingBackend("", ValueError())).step("ls")
