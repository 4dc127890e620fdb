"""An attempt at a task by a policy behind chat completions: the episode of the desk's harness, in messages.

Prompts, tool, environment, limits and verdict are those of :mod:`leonardo.rollout.episode`; the server renders the
conversation and counts its tokens.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from leonardo.errors import InfrastructureError
from leonardo.evaluation.chat import ChatClient, ContextFullError, Message, Reply
from leonardo.files import sha256_bytes
from leonardo.rollout.environment import Outcome
from leonardo.rollout.episode import Episode, EpisodeSettings, Finish, Rollout, Turn, terminal
from leonardo.rollout.formats import QWEN3_XML, Call, ToolFormat
from leonardo.rollout.prompts import FORMAT_ERROR
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

    def __post_init__(self) -> None:
        self.environment = terminal(self.task, self.make_backend, self.settings)
        self.episode = Episode(self.task, self.environment, self.settings, self.seed)

    def run(self) -> Rollout:
        """Take turns until the episode ends. An infrastructure failure ends it without a reward."""
        messages: list[Message] = [*self.episode.messages]
        try:
            self.episode.reset()
            while self.episode.finish is None:
                self._turn(messages)
        except InfrastructureError as error:
            self.episode.fail(error)
        finally:
            self.episode.close()
        return self.episode.rollout()

    def _turn(self, messages: list[Message]) -> None:
        episode = self.episode
        try:
            reply = self.client.ask(messages, turn_seed(self.seed, len(episode.turns)))
        except ContextFullError:
            episode.end(Finish.LENGTH)
            return
        messages.append(reply.message)
        command, outcome, seconds = None, Outcome(""), 0.0
        if not reply.finished:
            episode.end(Finish.LENGTH)
        else:
            try:
                command = command_of(reply, self.tool_format)
            except ToolCallError:
                outcome = Outcome(FORMAT_ERROR)
            else:
                outcome = self.environment.step(command)
                seconds = self.environment.times.commands[-1]
                episode.judge(outcome)
        episode.add(
            Turn(
                text=reply.text,
                command=command,
                observation=outcome.observation,
                exit_code=outcome.exit_code,
                seconds=seconds,
                prompt_tokens=reply.prompt_tokens or 0,
                tokens=(),
                logprobs=(),
                calls=() if command is None else (Call("bash", {"command": command}),),
                counted_tokens=reply.completion_tokens or 0,
            )
        )
        if episode.finish is not None:
            return
        messages += answers(reply, outcome.observation, len(episode.turns))
        if reply.prompt_tokens is not None and reply.completion_tokens is not None:
            episode.spend(reply.prompt_tokens + reply.completion_tokens)


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
