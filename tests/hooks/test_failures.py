"""Infrastructure failures are told from the agent's doing; without the variables nothing is."""

import asyncio
import errno
import pickle
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.hooks import failures
from leonardo.hooks.sandbox import PreparedBackend
from leonardo.sandbox.backend import SandboxLimitError, SandboxOOMError


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEONARDO_RUN", raising=False)
    monkeypatch.setenv("LEONARDO_EXCLUDE_INFRASTRUCTURE", "1")


def of_ray(name: str, cause: Exception | None = None) -> Exception:
    """An exception as Ray gives it: a class of its own, the remote one in ``cause``."""
    error = type(name, (Exception,), {"__module__": "ray.exceptions"})("lost")
    if cause is not None:
        error.cause = cause
    return error


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def http_error() -> Exception:
    return type("ReadTimeout", (Exception,), {"__module__": "requests.exceptions"})("no answer")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (InfrastructureError("lost"), "runtime"),
        (InfrastructureError("full", failure=FailureClass.SPACE), "space"),
        (caused(RuntimeError("Reset failed"), InfrastructureError("no mirror", "", FailureClass.MIRROR)), "mirror"),
        (of_ray("RayTaskError(RuntimeError)", caused(RuntimeError("x"), InfrastructureError("y"))), "runtime"),
        (of_ray("RayTaskError(ActorDiedError)", of_ray("ActorDiedError")), "runtime"),
        (of_ray("ActorDiedError"), "runtime"),
        (of_ray("RayTaskError(ValueError)", ValueError("no such argument")), None),
        (OSError(errno.ENOSPC, "No space left on device"), "space"),
        (ConnectionResetError("peer"), "runtime"),
        (TimeoutError("pool"), "runtime"),
        (http_error(), "runtime"),
        (FileNotFoundError("/workspace/x"), None),
        (SandboxOOMError("killed"), None),
        (SandboxLimitError("disk"), None),
        (RuntimeError("write_file failed for '/x'"), None),
        (ValueError("not a number"), None),
    ],
    ids=str,
)  # fmt: skip
def test_classes(error: Exception, expected: str | None) -> None:
    assert failures.class_of(error) == expected


class Environment:
    """An environment of upstream's make, whose calls end as they are told to."""

    def __init__(self, backend: Any = None, tests: Path | None = None, **ends: Exception) -> None:
        self._backend, self._tests_dir, self._task_id, self.ends = backend, tests, "t1", ends

    async def reset(self, task_id: str = "") -> str:
        return self._end("reset")

    async def step(self, call: str) -> str:
        return self._run_tests() if call == "submit" else self._end("step")

    def _run_tests(self) -> str:
        return self._end("verify")

    def _end(self, name: str) -> str:
        if name in self.ends:
            raise self.ends[name]
        return name


failures.separated(Environment)


@pytest.fixture
def tests(tmp_path: Path) -> Path:
    (tmp_path / "test.sh").write_text("exit 0\n")
    return tmp_path


def prepared() -> PreparedBackend:
    return PreparedBackend(SandboxOOMError, f"prepared://{'0' * 64}", 1, 1)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("docker does not answer"), FailureClass.RUNTIME),
        (caused(RuntimeError("Reset failed"), OSError(errno.EDQUOT, "quota")), FailureClass.SPACE),
        (caused(RuntimeError("Reset failed"), InputError("no prepared state 12ab")), FailureClass.SET_UP),
        (FileNotFoundError("/scratch/task/instruction.md"), FailureClass.RUNTIME),
    ],
)
def test_reset_has_no_agent_in_it(error: Exception, expected: FailureClass) -> None:
    with pytest.raises(InfrastructureError) as caught:
        asyncio.run(Environment(reset=error).reset())
    assert caught.value.failure is expected
    assert pickle.loads(pickle.dumps(caught.value)).failure is expected  # Ray carries it between processes


def test_step_keeps_what_is_the_agents(tests: Path) -> None:
    with pytest.raises(ValueError, match="bad argument"):
        asyncio.run(Environment(step=ValueError("bad argument")).step("ls"))
    with pytest.raises(InfrastructureError, match="ConnectionResetError"):
        asyncio.run(Environment(step=ConnectionResetError("daemon")).step("ls"))


@pytest.mark.parametrize(
    ("backend", "error", "excluded"),
    [
        (object(), RuntimeError("put_archive failed"), True),
        (object(), SandboxOOMError("killed"), False),
        (prepared(), RuntimeError("put_archive failed at '/': no space in the sandbox"), False),
        (prepared(), InfrastructureError("the sandbox was lost"), True),
    ],
)
def test_verification_that_fails(backend: Any, error: Exception, excluded: bool, tests: Path) -> None:
    environment = Environment(backend, tests, verify=error)
    with pytest.raises(InfrastructureError if excluded else type(error)):
        asyncio.run(environment.step("submit"))


def test_tests_that_are_not_there_are_no_verdict(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError) as caught:
        asyncio.run(Environment(prepared(), tmp_path).step("submit"))
    assert caught.value.failure is FailureClass.VERIFIER_BROKEN


def test_times_are_kept_apart(tests: Path) -> None:
    async def episode() -> dict[str, list[float]]:
        environment = Environment(prepared(), tests)
        await environment.reset()
        for call in ("ls", "submit"):
            await environment.step(call)
        return environment.leonardo_figures()

    times = asyncio.run(episode())
    assert {name: len(values) for name, values in times.items()} == {"reset": 1, "commands": 2, "verify": 1}


@dataclass
class Rollout:
    """Upstream's state of a rollout, as far as it is touched."""

    done: bool = False
    info: dict[str, Any] = field(default_factory=dict)


def test_mark_ends_and_names() -> None:
    rollout = Rollout(info={"env_name": "x"})
    failures.mark(rollout, ValueError("agent's"), "step")
    assert not rollout.done and failures.failure_of(vars(rollout)) is None
    failures.mark(rollout, TimeoutError("over 900 s"), "time-out")
    assert rollout.done
    assert failures.failure_of(vars(rollout)) == {
        "class": "runtime", "place": "time-out", "reason": "TimeoutError: over 900 s",
    }  # fmt: skip
    assert failures.failure_of({}) is None and failures.failure_of(None) is None


def test_score_that_could_not_be_had() -> None:
    states: list[dict[str, Any]] = [{}, {}]
    failures.mark_scored(states[0], http_error())
    failures.mark_scored(states[1], KeyError("score"))
    failures.mark_scored(None, http_error())
    assert failures.failure_of(states[0])["place"] == "score" and states[1] == {}


def acquiring(*errors: Exception) -> tuple[Callable[..., Any], list[int]]:
    left, calls = list(errors), []

    @failures.retried
    async def acquire(number: int) -> str:
        calls.append(number)
        if left:
            raise left.pop(0)
        return "had"

    return acquire, calls


def test_reset_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    acquire, calls = acquiring(of_ray("ActorDiedError"), InfrastructureError("full", failure=FailureClass.SPACE))
    assert asyncio.run(acquire(7)) == "had" and calls == [7, 7, 7]
    monkeypatch.setenv("LEONARDO_RESET_TRIES", "2")
    acquire, calls = acquiring(*[InfrastructureError("lost")] * 9)
    with pytest.raises(InfrastructureError):
        asyncio.run(acquire(7))
    assert len(calls) == 2


@pytest.mark.parametrize(
    "error", [InfrastructureError("no state", failure=FailureClass.SET_UP), ValueError("no such tool")]
)
def test_what_a_second_try_cannot_mend_is_not_tried_again(error: Exception) -> None:
    acquire, calls = acquiring(error)
    with pytest.raises(type(error)):
        asyncio.run(acquire(1))
    assert len(calls) == 1


def test_failed_reset_leaves_the_rollout_out_but_a_wrong_setting_ends_the_run() -> None:
    decide = failures.or_left_out(lambda error: False)
    assert decide(of_ray("ActorDiedError")) and not decide(ValueError("no such tool"))


def test_step_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failures.step_limit(120.0) == 900
    monkeypatch.setenv("LEONARDO_STEP_TIMEOUT", "30")
    assert failures.step_limit(120.0) == 30
    monkeypatch.setenv("LEONARDO_STEP_TIMEOUT", "half an hour")
    with pytest.raises(InputError, match="LEONARDO_STEP_TIMEOUT"):
        failures.step_limit(120.0)


class Actor:
    """A handle whose methods end as told."""

    def __init__(self, ends: Any) -> None:
        async def call() -> Any:
            if isinstance(ends, Exception):
                raise ends
            return ends

        self.get_metrics = types.SimpleNamespace(remote=call)
        self.setup = types.SimpleNamespace(remote=call)
        self.killed = False


@dataclass
class SetUp:
    """Upstream's record of the environments that a rollout has."""

    acquired: dict[str, Any]
    active_env_names: list[str]


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> type[Exception]:
    module = types.ModuleType("ray")
    error = type("RayError", (Exception,), {"__module__": "ray.exceptions"})
    module.exceptions = types.SimpleNamespace(RayError=error)
    module.kill = lambda actor: setattr(actor, "killed", True)
    monkeypatch.setitem(sys.modules, "ray", module)
    return error


def test_lost_environment_takes_no_verdict_along(ray: type[Exception]) -> None:
    there, gone = Actor({"steps": 2.0}), Actor(ray("lost"))
    setup = SetUp({"a": (None, there), "b": (None, gone)}, ["a", "b"])
    left, metrics = asyncio.run(failures.metrics_of(setup, {}, Rollout()))
    assert metrics == {"a": {"steps": 2.0}} and left.active_env_names == [] and left.acquired == setup.acquired
    assert not there.killed


def test_environment_that_hangs_is_ended(ray: type[Exception]) -> None:
    hanging, rollout = Actor({}), Rollout()
    failures.mark(rollout, TimeoutError("over"), "time-out")
    _, metrics = asyncio.run(failures.metrics_of(SetUp({"a": (None, hanging)}, ["a"]), {}, rollout))
    assert hanging.killed and metrics == {}


def test_lost_environment_is_replaced_in_its_pool() -> None:
    lost, other, fresh, free = Actor(None), Actor(None), Actor(None), []

    async def release(actor: Actor) -> None:
        free.append(actor)

    pool = types.SimpleNamespace(_actors=[lost, other], _release_actor=release)
    asyncio.run(failures.replace_lost(pool, lost, lambda: fresh))
    assert pool._actors == [fresh, other] and free == [fresh]


def test_nothing_happens_without_the_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("LEONARDO_EXCLUDE_INFRASTRUCTURE")
    error = RuntimeError("Reset failed")
    with pytest.raises(RuntimeError) as caught:
        asyncio.run(Environment(reset=error).reset())
    assert caught.value is error
    with pytest.raises(ConnectionResetError):
        asyncio.run(Environment(step=ConnectionResetError()).step("ls"))
    assert asyncio.run(Environment(prepared(), tmp_path).step("submit")) == "verify"
    rollout, setup = Rollout(), SetUp({}, ["a"])
    failures.mark(rollout, TimeoutError(), "time-out")
    failures.not_restarted("c1")
    assert rollout == Rollout() and failures.step_limit(120.0) == 120.0
    assert asyncio.run(failures.metrics_of(setup, {}, rollout)) == (setup, {})
    acquire, calls = acquiring(InfrastructureError("lost"))
    with pytest.raises(InfrastructureError):
        asyncio.run(acquire(1))
    assert len(calls) == 1
