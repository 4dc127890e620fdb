"""Demonstrations: attempts of the desk corpus as conversations, with the observations that a real sandbox gave."""

import contextlib
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import leonardo
from leonardo.engine.desk.config import WarmStartConfig
from leonardo.engine.desk.dialogue import Dialogue
from leonardo.errors import InfrastructureError
from leonardo.files import digest_of, write_atomic
from leonardo.rollout.environment import TerminalEnvironment
from leonardo.rollout.episode import EpisodeSettings, Messages
from leonardo.rollout.formats import QWEN3_XML, ToolFormat, Tools
from leonardo.rollout.prompts import BASH_TOOL, SUBMIT_COMMAND, messages_of
from leonardo.rollout.sandboxes import MakeBackend
from leonardo.rollout.tool_calls import render_tool_call
from leonardo.tasks.desk import DeskTask

_MOST_FAILURES = 0.05


@dataclass(frozen=True)
class Demonstration:
    """A conversation to imitate.

    Attributes:
        messages: what it begins with.
        turns: (what the policy says, the observation it gets); the last one's observation is not shown.
        right: whether it solves the task.
        tools: what could be called.
    """

    messages: Messages
    turns: tuple[tuple[str, str], ...]
    right: bool
    tools: Tools = (BASH_TOOL,)

    def tokens(self, dialogue: Dialogue) -> tuple[list[int], list[bool]]:
        """The conversation as a rollout would hold it, and which tokens the policy chose."""
        tokens = dialogue.prompt(self.messages, self.tools)
        response = [False] * len(tokens)
        for number, (text, observation) in enumerate(self.turns, start=1):
            said = dialogue.turn(text)
            shown = dialogue.observation(observation) if number < len(self.turns) else []
            tokens += said + shown
            response += [True] * len(said) + [False] * len(shown)
        return tokens, response

    @property
    def text(self) -> str:
        """All words of it, to train a tokenizer on."""
        parts = [message["content"] for message in self.messages]
        return "\n".join([*parts, *(part for turn in self.turns for part in turn)])


def first_turns(
    tasks: Iterable[DeskTask], config: WarmStartConfig, tool_format: ToolFormat = QWEN3_XML
) -> list[Demonstration]:
    """One demonstration a task, of its first turn only: it needs no sandbox, for it shows no observation."""
    random = Random(f"{config.data_seed} first turns")
    made = []
    for task in tasks:
        attempt = task.attempt(random, right=config.right, partial=config.partial)
        turns = ((render_tool_call([*attempt.commands, SUBMIT_COMMAND][0], tool_format), ""),)
        made.append(Demonstration(messages_of(task.task), turns, attempt.kind == "right"))
    return made


def whole_demonstrations(
    tasks: Sequence[DeskTask],
    config: WarmStartConfig,
    make_backend: MakeBackend,
    cache: Path,
    tool_format: ToolFormat = QWEN3_XML,
) -> list[Demonstration]:
    """``config.demonstrations`` attempts a task, each run in a sandbox of its own, submission included.

    The attempts are kept in ``cache`` under the digest of all that decides them, so that they are made once, for every
    format.

    Raises:
        InfrastructureError: if more than a twentieth could not be run; fewer are left out.
    """
    random = Random(f"{config.data_seed} whole demonstrations")
    plan = [
        (task, task.attempt(random, right=config.right, partial=config.partial))
        for task in tasks
        for _ in range(config.demonstrations)
    ]
    rules = config.episode.rules
    key = [leonardo.__version__, "commands", rules.limit, rules.head, rules.tail]
    digest = digest_of([key, [[task.task.digest, *attempt.commands] for task, attempt in plan]])
    path = cache / f"demonstrations-{digest[:16]}.jsonl"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):  # absent, or damaged: made again
        kept = [_from_line(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if len(kept) == len(plan):
            return [attempt.demonstration(tool_format) for attempt in kept]

    def attempt_made(index: int) -> _Attempt | InfrastructureError:
        task, attempt = plan[index]
        try:
            turns = _run(task, attempt.commands, make_backend, config.episode)
        except InfrastructureError as error:
            return error
        return _Attempt(messages_of(task.task), turns, attempt.kind == "right")

    with ThreadPoolExecutor(config.episode.threads, thread_name_prefix="demonstration") as pool:
        outcomes = list(pool.map(attempt_made, range(len(plan))))
    errors = [outcome for outcome in outcomes if isinstance(outcome, InfrastructureError)]
    if len(errors) > _MOST_FAILURES * len(plan):
        raise InfrastructureError(
            f"{len(errors)} of {len(plan)} demonstrations could not be run, the first because: {errors[0].what}",
            errors[0].hint,
            errors[0].failure,
        )
    made = [outcome for outcome in outcomes if isinstance(outcome, _Attempt)]
    if not errors:
        write_atomic(path, "".join(f"{_to_line(attempt)}\n" for attempt in made))
    return [attempt.demonstration(tool_format) for attempt in made]


@dataclass(frozen=True)
class _Attempt:
    """What was run: (command, observation) turn by turn, whatever the format that will say it."""

    messages: Messages
    turns: tuple[tuple[str, str], ...]
    right: bool

    def demonstration(self, tool_format: ToolFormat) -> Demonstration:
        turns = tuple((render_tool_call(command, tool_format), shown) for command, shown in self.turns)
        return Demonstration(self.messages, turns, self.right)


def _run(
    task: DeskTask, commands: Sequence[str], make_backend: MakeBackend, settings: EpisodeSettings
) -> tuple[tuple[str, str], ...]:
    environment = TerminalEnvironment(
        task.task, make_backend, rules=settings.rules, command_timeout=settings.command_timeout
    )
    try:
        environment.reset()
        turns = [(command, environment.step(command).observation) for command in commands]
    finally:
        environment.close()
    return (*turns, (SUBMIT_COMMAND, ""))


def _to_line(attempt: _Attempt) -> str:
    return json.dumps({"messages": list(attempt.messages), "turns": attempt.turns, "right": attempt.right})


def _from_line(line: str) -> _Attempt:
    value = json.loads(line)
    return _Attempt(value["messages"], tuple((command, shown) for command, shown in value["turns"]), value["right"])
