"""The terminal environment: one task's episode in one sandbox, with the semantics of upstream's vanillux harness.

A single ``bash`` tool; working directory and exported variables persist between calls; the tests come into the sandbox
at submission and not before; the reward is what the verifier wrote. What the machine does wrong is raised as
:class:`leonardo.errors.InfrastructureError` and never becomes a reward.
"""

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from leonardo.errors import InfrastructureError
from leonardo.rollout import verification
from leonardo.rollout.formats import Call, ToolFormat, Tools
from leonardo.rollout.observation import ObservationRules, joined
from leonardo.rollout.prompts import BASH_TOOL, FORMAT_ERROR, SUBMIT_MARKER, messages_of
from leonardo.rollout.tool_calls import ToolCallError, parse_tool_call
from leonardo.sandbox.backend import SandboxBackend, SandboxOOMError
from leonardo.tasks.task import Task

_WRAPPER = "/tmp/.terminal-shell"
_STATE = "/tmp/.terminal-state"

# As in upstream's wrapper, a command that ends the shell (exit, exec) leaves folder and variables as they were before.
_WRAPPER_TEXT = f"""\
#!/bin/bash
set -a
[ -f {_STATE}.variables ] && source {_STATE}.variables
set +a
cd "$(cat {_STATE}.folder 2>/dev/null || echo /app)" 2>/dev/null || cd /workspace || exit 1
eval "$1"
_terminal_status=$?
export -p >{_STATE}.variables
pwd >{_STATE}.folder
exit $_terminal_status
"""

RESET_TRIES = 3
"""Fresh sandboxes that are tried before a reset is given up as an infrastructure failure."""


@dataclass(frozen=True)
class Outcome:
    """What an action led to.

    Attributes:
        observation: what the policy is shown; empty when the episode is over.
        exit_code: the command's.
        done: whether the episode is over.
        reward: 0 or 1 when it is over.
        status: how it ended: a :class:`leonardo.rollout.verification.Status`, or ``out-of-memory``.
        action: what the policy did, as text; None where its turn could not be read.
        calls: the tools it called.
        speaker: whose words the observation is: a tool's, or the user's next request.
    """

    observation: str
    exit_code: int | None = None
    done: bool = False
    reward: float | None = None
    status: str = ""
    action: str | None = None
    calls: tuple[Call, ...] = ()
    speaker: Literal["tool", "user"] = "tool"


@dataclass
class Times:
    """Where an episode's sandbox time went, in seconds."""

    reset: float = 0.0
    commands: list[float] = field(default_factory=list)
    verify: float = 0.0
    destroy: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        return self.reset + sum(self.commands) + self.verify + self.destroy


class TerminalEnvironment:
    """One episode of ``task``.

    Args:
        task: what is to be solved.
        make_backend: gives a sandbox, not started, on the task's prepared state.
        rules: how much output is shown.
        command_timeout: seconds for one command.
        verifier_timeout: seconds for the verifier.
    """

    def __init__(
        self,
        task: Task,
        make_backend: Callable[[Task], SandboxBackend],
        *,
        rules: ObservationRules = ObservationRules(),
        command_timeout: float = 120.0,
        verifier_timeout: float = verification.VERIFIER_TIMEOUT,
    ) -> None:
        self.task = task
        self.times = Times()
        self._make_backend = make_backend
        self._rules = rules
        self._command_timeout = command_timeout
        self._verifier_timeout = verifier_timeout
        self._backend: SandboxBackend | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation that the episode begins with."""
        return messages_of(self.task)

    @property
    def tools(self) -> Tools:
        """``bash`` alone."""
        return (BASH_TOOL,)

    def reset(self) -> None:
        """Begin the episode in a fresh sandbox. Raises InfrastructureError after :data:`RESET_TRIES` failures."""
        started = time.perf_counter()
        for left in reversed(range(RESET_TRIES)):
            self.close()
            try:
                self._backend = self._make_backend(self.task)
                self._backend.start()
                verification.prepare(self._backend, self.task, files={_WRAPPER: _WRAPPER_TEXT})
                break
            except InfrastructureError:
                self.close()
                if not left:
                    raise
        self.times = Times(reset=time.perf_counter() - started)

    def act(self, text: str, tool_format: ToolFormat) -> Outcome:
        """Take the policy's turn: one call of ``bash``, or it is told that it was none."""
        try:
            command = parse_tool_call(text, tool_format).command
        except ToolCallError:
            return Outcome(FORMAT_ERROR)
        return replace(self.step(command), action=command, calls=(Call("bash", {"command": command}),))

    def step(self, command: str) -> Outcome:
        """Run the agent's command; one whose output holds the submit marker ends the episode with its reward.

        Raises InfrastructureError where the machine failed: there is no reward then.
        """
        backend = self._running()
        started = time.perf_counter()
        try:
            result = backend.run_command(f"bash {_WRAPPER} {shlex.quote(command)}", timeout=self._command_timeout)
        except SandboxOOMError as error:
            return Outcome(str(error), done=True, reward=0.0, status="out-of-memory")
        finally:
            self.times.commands.append(time.perf_counter() - started)
        if SUBMIT_MARKER in joined(result):
            return self._submit(result.exit_code)
        return Outcome(self._rules.render(result), result.exit_code)

    def close(self) -> None:
        """End the sandbox. May be called twice."""
        if self._backend is not None:
            started = time.perf_counter()
            backend, self._backend = self._backend, None
            backend.close()
            self.times.destroy = time.perf_counter() - started

    def _submit(self, exit_code: int) -> Outcome:
        # The gates have seen this verifier run on the initial state and on the reference's, so one that breaks now
        # was broken by what the agent left: a 0 like any other, but counted under its own name.
        started = time.perf_counter()
        try:
            verdict = verification.verify(self._running(), self.task, self._verifier_timeout)
        except SandboxOOMError as error:
            return Outcome(str(error), exit_code, done=True, reward=0.0, status="out-of-memory")
        finally:
            self.times.verify = time.perf_counter() - started
        reward = 1.0 if verdict.status is verification.Status.PASSED else 0.0
        return Outcome("", exit_code, done=True, reward=reward, status=verdict.status.value)

    def _running(self) -> SandboxBackend:
        if self._backend is None:
            raise RuntimeError("the environment has no sandbox: call reset() first")
        return self._backend
