"""An attempt at a task by a policy behind chat completions: the episode of the desk's harness, in messages.

Prompts, tool, environment, limits and verdict are those of :mod:`leonardo.rollout.episodes`; the server renders the
conversation and counts its tokens.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from leonardo.errors import InfrastructureError
from leonardo.evaluation.chat import ChatClient, ContextFullError, Message, Reply
from leonardo.files import sha256_bytes
from leonardo.rollout.environment import TerminalEnvironment
from leonardo.rollout.episodes import EpisodeSettings, Finish, Rollout, Turn
from leonardo.rollout.formats import QWEN3_XML, Call, ToolFormat
from leonardo.rollout.prompts import FORMAT_ERROR, messages_of
from leonardo.rollout.sandboxes import MakeBackend
from leonardo.rollout.tool_calls import ToolCallError, parse_tool_call
from leonardo.tasks.task import Task

_THOUGHT = re.compile(r"^.*</think>", re.DOTALL)


def turn_seed(seed: int, turn: int) -> int:
    """The seed of an attempt's turn: 31 bits."""
    return int(sha256_bytes(f"{seed}/{turn}".encode())[:8], 16) >> 1


@dataclass
class Conversation:
    """An attempt at ``task``; :meth:`run` once.

    Args:
        client: the policy.
        tool_format: how the policy's family writes calls, for those that the server does not read.
    """

    client: ChatClient
    task: Task
    seed: int
    make_backend: MakeBackend
    settings: EpisodeSettings
    tool_format: ToolFormat = QWEN3_XML
    turns: list[Turn] = field(default_factory=list)
    finish: Finish | None = None
    reward: float | None = None
    error: InfrastructureError | None = None
    status: str = ""

    def run(self) -> Rollout:
        """Take turns until the episode ends. An infrastructure failure ends it without a reward."""
        opening = messages_of(self.task)
        messages: list[Message] = [*opening]
        environment = TerminalEnvironment(
            self.task,
            self.make_backend,
            rules=self.settings.rules,
            command_timeout=self.settings.command_timeout,
            verifier_timeout=self.settings.verifier_timeout,
        )
        try:
            environment.reset()
            while self.finish is None:
                self._turn(environment, messages)
        except InfrastructureError as error:
            self._fail(error)
        finally:
            self._close(environment.close)
        return Rollout(
            task_id=self.task.id,
            family=self.task.kind,
            group=0,
            seed=self.seed,
            messages=opening,
            tokens=(),
            response_mask=(),
            logprobs=(),
            turns=tuple(self.turns),
            reward=self.reward,
            failure=self.error.failure if self.error else None,
            failure_reason=str(self.error) if self.error else "",
            finish=self.finish or Finish.INFRASTRUCTURE,
            status=self.status,
            entropy=0.0,
            times=environment.times,
        )

    def _turn(self, environment: TerminalEnvironment, messages: list[Message]) -> None:
        try:
            reply = self.client.ask(messages, turn_seed(self.seed, len(self.turns)))
        except ContextFullError:
            self._end(Finish.LENGTH)
            return
        messages.append(reply.message)
        command, observation, exit_code, seconds = None, "", None, 0.0
        if not reply.finished:
            self._end(Finish.LENGTH)
        else:
            try:
                command = command_of(reply, self.tool_format)
            except ToolCallError:
                observation = FORMAT_ERROR
            else:
                outcome = environment.step(command)
                observation, exit_code = outcome.observation, outcome.exit_code
                seconds = environment.times.commands[-1]
                if outcome.done:
                    self.status = outcome.status
                    oom = outcome.status == Finish.OUT_OF_MEMORY
                    self._end(Finish.OUT_OF_MEMORY if oom else Finish.SUBMITTED, outcome.reward)
        self.turns.append(
            Turn(
                text=reply.text,
                command=command,
                observation=observation,
                exit_code=exit_code,
                seconds=seconds,
                prompt_tokens=reply.prompt_tokens or 0,
                tokens=(),
                logprobs=(),
                calls=() if command is None else (Call("bash", {"command": command}),),
                counted_tokens=reply.completion_tokens or 0,
            )
        )
        if self.finish is not None:
            return
        if len(self.turns) == self.settings.steps:
            self._end(Finish.STEP_LIMIT)
        messages += answers(reply, observation, len(self.turns))
        if reply.prompt_tokens is not None and reply.completion_tokens is not None:
            used = reply.prompt_tokens + reply.completion_tokens
            if used + self.settings.turn_tokens > self.settings.context_tokens:
                self._end(Finish.LENGTH)

    def _close(self, close: Callable[[], None]) -> None:
        """End the sandbox. If the machine cannot, the attempt loses its reward: it may not have been alone."""
        try:
            close()
        except InfrastructureError as error:
            self._fail(error)

    def _end(self, finish: Finish, reward: float | None = 0.0) -> None:
        if self.finish is None:
            self.finish, self.reward = finish, reward

    def _fail(self, error: InfrastructureError) -> None:
        self.finish, self.reward, self.error = Finish.INFRASTRUCTURE, None, error


def command_of(reply: Reply, tool_format: ToolFormat = QWEN3_XML) -> str:
    """The one ``bash`` command of a turn, whoever has read the call. Raises ToolCallError."""
    if not reply.calls:
        return parse_tool_call(_THOUGHT.sub("", reply.text), tool_format).command
    if len(reply.calls) > 1:
        raise ToolCallError("more than one tool call")
    try:
        function = reply.calls[0]["function"]
        name, arguments = function["name"], json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError) as error:
        raise ToolCallError(f"the call cannot be read: {error}") from error
    if name != "bash" or not isinstance(arguments, dict) or set(arguments) != {"command"}:
        raise ToolCallError("not a call of bash with a command")
    command = arguments["command"]
    if not isinstance(command, str) or not command.strip():
        raise ToolCallError("the command is empty")
    return command


def answers(reply: Reply, observation: str, number: int) -> Sequence[dict[str, Any]]:
    """The messages that answer a turn: one a call that the server has read, else one."""
    calls = [call.get("id") or f"call_{number}" for call in reply.calls] or [f"call_{number}"]
    return [{"role": "tool", "tool_call_id": call, "content": observation} for call in calls]
