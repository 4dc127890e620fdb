"""Patches 0010 and 0012 in upstream's own environments, rollout loop and pool: what is the machine's is marked."""

import asyncio
import sys
import time
import types
from collections import defaultdict
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from leonardo.errors import InfrastructureError
from leonardo.hooks.failures import failure_of
from leonardo.overlay.tree import Tree
from tests.upstream.extracted import ROOT, define


class OutOfMemory(RuntimeError):
    """Stands for upstream's exception."""


OutOfMemory.__name__ = "SandboxOOMError"


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEONARDO_EXCLUDE_INFRASTRUCTURE", "1")


class Backend:
    """A sandbox of upstream's interface, whose calls end as told."""

    def __init__(self, **ends: Any) -> None:
        self.ends, self.closed, self._image = ends, 0, ""

    def start(self) -> None:
        self._end("start")

    def run_command(self, command: str, timeout: float | None = None) -> Any:
        self._end("verifier" if "test.sh" in command and timeout else "command" if "the-agents" in command else "")
        marker = "SUBMIT" if "submit" in command else "EXISTS" if "EXISTS" in command else "1"
        return SimpleNamespace(stdout=marker, stderr="", exit_code=0)

    def write_file(self, path: str, content: str) -> None: ...

    def put_archive(self, root: str, tar_bytes: bytes) -> None:
        self._end("upload")

    def close(self) -> None:
        self.closed += 1

    def _end(self, name: str) -> None:
        if name in self.ends:
            raise self.ends[name]


ENVIRONMENTS = {"SWERLVanilluxSandboxEnv": "swerl_vanillux_sandbox.py", "SWERLSandboxEnv": "swerl_sandbox.py"}


@pytest.fixture(params=ENVIRONMENTS)
def environment(request: pytest.FixtureRequest, upstream: Tree, commit: tuple[str, str], tmp_path: Path) -> Any:
    """Makes upstream's environment (unpatched or patched) on a sandbox whose calls end as told."""
    import contextlib
    import io
    import os
    import random
    import shlex
    import tarfile

    (tmp_path / "t1" / "tests").mkdir(parents=True)
    (tmp_path / "t1" / "tests" / "test.sh").write_text("exit 0\n")
    space: dict[str, Any] = (
        {each.__name__: each for each in (asyncio, contextlib, io, os, random, shlex, tarfile, time)}
        | {
            "RLEnvironment": object,
            "SandboxOOMError": OutOfMemory,
            "StepResult": SimpleNamespace,
            "SUBMIT_MARKER": "SUBMIT",
            "TIMING_LOGS": False,
            "coerce_args": lambda schema, values: values,
            "truncate_observation": str,
            "_truncate": str,
        }
        | dict.fromkeys(
            ("_BASH_CWD_PATH", "_BASH_ENV_PATH", "_BASH_WRAPPER_PATH", "_BASH_WRAPPER_PATH_QUOTED"), "/tmp/x"
        )
    )
    define(
        upstream.git("show", f"{commit[1]}:{ROOT}/environments/{ENVIRONMENTS[request.param]}"), [request.param], space
    )
    kind = space[request.param]
    kind._RESET_RETRY_BASE_DELAY_S = kind._RESET_RETRY_JITTER_S = 0.0

    def make(**ends: Any) -> Any:
        backend = Backend(**ends)
        space["create_backend"] = lambda *arguments, **options: backend
        return kind(backend="apptainer", image="x.sif", task_data_dir=str(tmp_path)), backend

    return make


def call(command: str) -> Any:
    return SimpleNamespace(name="bash", args={"command": command})


async def episode(made: Any, command: str) -> Any:
    await made.reset(task_id="t1", image="x.sif")
    return await made.step(call(command))


def test_reset_that_fails(environment: Any, commit: tuple[str, str]) -> None:
    made, backend = environment(start=RuntimeError("no instance"))
    with pytest.raises(InfrastructureError if commit[0] == "patched" else RuntimeError, match="no instance") as caught:
        asyncio.run(made.reset(task_id="t1", image="x.sif"))
    assert backend.closed == 3  # upstream's own tries
    assert isinstance(caught.value, InfrastructureError) is (commit[0] == "patched")


def test_upload_that_fails(environment: Any, commit: tuple[str, str]) -> None:
    made, _ = environment(upload=RuntimeError("tar: broken pipe"))
    with pytest.raises(InfrastructureError if commit[0] == "patched" else RuntimeError, match="broken pipe"):
        asyncio.run(episode(made, "submit"))


def test_daemon_that_is_not_there(environment: Any, commit: tuple[str, str]) -> None:
    made, _ = environment(command=ConnectionRefusedError("docker"))
    with pytest.raises(InfrastructureError if commit[0] == "patched" else ConnectionRefusedError):
        asyncio.run(episode(made, "the-agents"))


@pytest.mark.parametrize("place", ["command", "upload", "verifier"])
def test_out_of_memory_stays_a_reward_of_0(environment: Any, place: str) -> None:
    made, _ = environment(**{place: OutOfMemory("killed")})
    outcome = asyncio.run(episode(made, "the-agents" if place == "command" else "submit"))
    assert (outcome.reward, outcome.done) == (0.0, True)


def test_episode_without_failures_is_upstreams(environment: Any) -> None:
    made, _ = environment()
    outcome = asyncio.run(episode(made, "submit"))
    assert (outcome.reward, outcome.done) == (1.0, True)


class Remote:
    """A method of an actor's: awaited, it ends as told."""

    def __init__(self, *ends: Any) -> None:
        self.ends, self.calls = list(ends), 0

    async def remote(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        end = self.ends.pop(0) if len(self.ends) > 1 else self.ends[0]
        if isinstance(end, Exception):
            raise end
        return await end() if asyncio.iscoroutinefunction(end) else end


def rayed(name: str, cause: Exception | None = None) -> Exception:
    error = type(name, (RayError,), {"__module__": "ray.exceptions"})("the actor died")
    if cause is not None:
        error.cause = cause
    return error


class RayError(Exception):
    """Stands for Ray's."""


def rolled_out(
    upstream: Tree, commit: str, monkeypatch: pytest.MonkeyPatch, step: Remote, reset: Remote | None = None,
    metrics: Remote | None = None,
) -> tuple[dict[str, Any], int]:  # fmt: skip
    """The state of one rollout of upstream's loop, and how many turns the policy had: each calls ``bash``."""
    ray = types.ModuleType("ray")
    ray.exceptions = SimpleNamespace(RayError=RayError)
    ray.kill = mock.MagicMock()
    monkeypatch.setitem(sys.modules, "ray", ray)
    space: dict[str, Any] = {"asyncio": asyncio, "time": time, "defaultdict": defaultdict, "SANDBOX_TIMING_LOGS": False}
    space |= {"RESET_FAILURE_ZERO_REWARD": True, "RESET_FAILURE_ZERO_REWARD_MARKERS": ("reset failed after",)}
    define(
        upstream.git("show", f"{commit}:{ROOT}/data_types.py"), ["ToolCallStats", "EnvConfig", "EnvConfigEntry"], space
    )
    define(upstream.git("show", f"{commit}:{ROOT}/environments/base.py"), ["RolloutState"], space)
    names = (
        "process_request _acquire_and_reset_pools _should_zero_reward_reset_failure PoolSetup _register_tool_dispatch "
        "_select_tool_call_format_error_message SamplingConfig CompletionOutput RequestOutput split_request_id"
    )
    space["process_tool_tokens"] = lambda *arguments, **options: ([9], [0.0], [0], 0)
    space["EnvCall"] = SimpleNamespace

    async def healthy(port: int) -> None: ...

    define(upstream.git("show", f"{commit}:{ROOT}/vllm_utils.py"), names.split(), space)
    space["_check_health"] = healthy
    environment = SimpleNamespace(
        step=step,
        get_metrics=metrics or Remote({"step_count": 1.0}),
        get_response_role=Remote("tool"),
        get_tool_call_format_error_message=Remote(None),
    )
    tools = [{"function": {"name": "bash"}}]
    pool = SimpleNamespace(acquire_reset=reset or Remote((environment, tools)), release=mock.MagicMock())
    if reset is not None:
        reset.ends = [(environment, tools) if end == "had" else end for end in reset.ends]
    turn = SimpleNamespace(
        token_ids=[4, 5], text="ls", finish_reason="stop", logprobs=SimpleNamespace(token_logprobs=[-1.0, -2.0])
    )
    generate = Remote(SimpleNamespace(choices=[turn]))
    parsed = SimpleNamespace(tool_calls=[SimpleNamespace(name="bash", args={})], had_tool_call=True)
    done: Queue[Any] = Queue()
    actor = SimpleNamespace(
        server_port=1, pools={"sandbox": pool}, per_turn_max_tokens=None, tool_call_timeout=0.2, model_name="m",
        mask_tool_use=True, active_tasks={}, completion_queue=done,
        tool_parser=SimpleNamespace(parse_tool_calls=lambda text: parsed),
        client=SimpleNamespace(completions=SimpleNamespace(create=generate.remote)),
        llm_engine=SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=100), tokenizer=SimpleNamespace(eos_token_id=1)
        ),
    )  # fmt: skip
    sampling = space["SamplingConfig"](max_tokens=50)
    actor.request_metadata = {
        "train_0_1": {
            "prompt_token_ids": [1], "active_tools": None, "env_config": space["EnvConfig"](max_steps=3),
            "original_sampling_params": sampling,
        }
    }  # fmt: skip
    asyncio.run(space["process_request"](actor, "train_0_1_0", sampling))
    output = done.get_nowait()["request_output"].outputs[0]
    assert len(output.token_ids) == len(output.logprobs) == len(output.mask)
    return output.rollout_state, generate.calls


def answer(reward: float = 0.0, done: bool = False) -> Any:
    return SimpleNamespace(result="x", reward=reward, done=done, metadata={})


async def hang() -> None:
    await asyncio.sleep(30)


LOST = RuntimeError("Reset failed after 3 attempts")


@pytest.mark.parametrize(
    ("end", "place"),
    [
        (rayed("ActorDiedError"), "step"),
        (rayed("RayTaskError(InfrastructureError)", InfrastructureError("the sandbox was lost")), "step"),
        (hang, "time-out"),
    ],
    ids=["actor", "sandbox", "runtime"],
)
def test_step_that_fails(
    upstream: Tree, commit: tuple[str, str], monkeypatch: pytest.MonkeyPatch, end: Any, place: str
) -> None:
    monkeypatch.setattr("leonardo.hooks.failures.step_limit", lambda seconds: seconds)
    state, turns = rolled_out(upstream, commit[1], monkeypatch, Remote(answer(), end, answer()))
    assert state["rewards"][:2] == [0.0, 0.0]
    if commit[0] == "unpatched":  # it goes on, and ends with a reward
        assert turns == 3 and failure_of(state) is None
        return
    failure = failure_of(state)
    assert failure is not None and (failure["class"], failure["place"]) == ("runtime", place)
    assert turns == 2 and state["done"]


def test_error_of_the_agents_is_shown_to_it(
    upstream: Tree, commit: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = rayed("RayTaskError(ValueError)", ValueError("no such argument"))
    state, turns = rolled_out(upstream, commit[1], monkeypatch, Remote(answer(), error, answer(1.0, True)))
    assert (failure_of(state), turns, state["rewards"]) == (None, 3, [0.0, 0.0, 1.0])


def test_reset_that_fails_once_is_tried_again(
    upstream: Tree, commit: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reset = Remote(rayed("RayTaskError(InfrastructureError)", InfrastructureError("busy")), "had")
    if commit[0] == "unpatched":  # upstream knows no such error
        with pytest.raises(RayError):
            rolled_out(upstream, commit[1], monkeypatch, Remote(answer(1.0, True)), reset)
        return
    state, _ = rolled_out(upstream, commit[1], monkeypatch, Remote(answer(1.0, True)), reset)
    assert failure_of(state) is None and state["rewards"] == [1.0] and reset.calls == 2


def test_reset_that_stays_broken(upstream: Tree, commit: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    lost = LOST if commit[0] == "unpatched" else InfrastructureError("a reset failed")
    reset = Remote(rayed("RayTaskError", lost))
    reset.ends[0].args = (str(lost),)
    state, turns = rolled_out(upstream, commit[1], monkeypatch, Remote(answer()), reset)
    assert turns == 0 and state["rewards"] == [0.0]
    assert (failure_of(state) is None) is (commit[0] == "unpatched")


def test_environment_that_dies_after_the_verdict(
    upstream: Tree, commit: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    step, metrics = Remote(answer(1.0, True)), Remote(rayed("ActorDiedError"))
    if commit[0] == "unpatched":  # the run ends with it
        with pytest.raises(RayError):
            rolled_out(upstream, commit[1], monkeypatch, step, metrics=metrics)
        return
    state, _ = rolled_out(upstream, commit[1], monkeypatch, step, metrics=metrics)
    assert state["rewards"] == [1.0] and failure_of(state) is None


def test_lost_container_is_not_replaced_by_a_fresh_one(
    upstream: Tree, commit: tuple[str, str], stand_ins: None
) -> None:
    module = types.ModuleType("backends")
    exec(
        compile(upstream.git("show", f"{commit[1]}:{ROOT}/environments/backends.py"), "backends", "exec"), vars(module)
    )
    backend = module.DockerBackend()
    with mock.patch.object(backend, "start") as start, pytest.raises((InfrastructureError, RuntimeError)):
        backend._restart_and_retry_exec("true", "c1")
    assert start.called is (commit[0] == "unpatched")


def test_pool_replaces_an_environment_that_is_gone(upstream: Tree, commit: tuple[str, str]) -> None:
    made: list[Any] = []

    def start(**options: Any) -> Any:
        reset = Remote(rayed("ActorDiedError") if not made else (1, ["bash"]))
        made.append(SimpleNamespace(setup=Remote(None), reset=reset))
        return made[-1]

    space: dict[str, Any] = {
        "asyncio": asyncio,
        "ray": mock.MagicMock(),
        "_actor_key": id,
        "DEFAULT_ACQUIRE_TIMEOUT_S": 1,
    }
    space["ray"].method = lambda **options: lambda function: function
    space["ray"].get = lambda calls: [asyncio.run(call) for call in calls]
    space["ray"].remote.return_value.remote = start
    space["_actor_reusable_after_error"] = lambda error: not isinstance(error, RayError)
    space["_podman_docker_hosts_from_env"] = list
    define(upstream.git("show", f"{commit[1]}:{ROOT}/environments/pool.py"), ["EnvironmentPool"], space)
    pool = space["EnvironmentPool"](1, object)

    async def lives() -> int:
        with pytest.raises(RayError):
            await pool.acquire_reset({})
        left = pool._available.qsize()
        if left:
            assert (await pool.acquire_reset({})) == (made[1], ["bash"])
        return left

    assert asyncio.run(lives()) == (1 if commit[0] == "patched" else 0)
