"""A function-calling row as an episode: the same loop, groups, learner and records as for terminal tasks.

A single turn's calls are compared by the package's checker, and that is the reward. In a multi-turn row calls are
executed by the package's simulated services, in a process of the episode's own; a turn without a call hands over to the
user, whose last request ends the episode: then the package's checker executes all of it again and judges.
"""

import time
import uuid
from collections.abc import Callable
from dataclasses import replace

from leonardo.functions.checkers import CheckerError, Checkers, CheckerTimeout
from leonardo.functions.tasks import FunctionTask, Messages
from leonardo.rollout.environment import Outcome, Times
from leonardo.rollout.episode import EpisodeSettings
from leonardo.rollout.formats import Call, NoToolCallError, ToolCallError, ToolFormat, Tools
from leonardo.rollout.observation import ObservationRules
from leonardo.rollout.verification import Status

FORMAT_ERROR = "Format error: the call cannot be read."
TIMEOUT = "timeout"
"""Status of an episode whose own call did not come back in time."""


class FunctionWorlds:
    """Makes the environments of function-calling tasks, in the place of sandboxes.

    Args:
        checkers: judges single turns; it is shared and stays open.
    """

    def __init__(self, checkers: Checkers) -> None:
        self._checkers = checkers

    def environment(self, task: FunctionTask, settings: EpisodeSettings) -> "SingleTurn | MultiTurn":
        """An episode's environment, not begun."""
        if task.multi_turn:
            return MultiTurn(task, lambda: Checkers(settings.command_timeout), settings.rules)
        return SingleTurn(task, self._checkers)


class SingleTurn:
    """One turn of a row: the right calls, or none where none fits."""

    def __init__(self, task: FunctionTask, checkers: Checkers) -> None:
        self.task = task
        self.times = Times()
        self._checkers = checkers

    @property
    def messages(self) -> Messages:
        """What is asked."""
        return self.task.messages

    @property
    def tools(self) -> Tools:
        """The row's functions."""
        return self.task.tools

    def reset(self) -> None:
        """Nothing is held."""

    def close(self) -> None:
        """Nothing is held."""

    def act(self, text: str, tool_format: ToolFormat) -> Outcome:
        """The turn's verdict. One that begins a call and does not end it is wrong, whatever the row."""
        try:
            calls = calls_of(text, tool_format, self.tools)
        except ToolCallError:
            return Outcome("", done=True, reward=0.0, status=Status.FAILED)
        started = time.perf_counter()
        verdict = _verdict(lambda: self._checkers.ask("check", row=self.task.row, calls=as_json(calls)))
        self.times.verify = time.perf_counter() - started
        return replace(verdict, action=_action(calls), calls=calls)


class MultiTurn:
    """A conversation with simulated services.

    Args:
        task: the row.
        open_checkers: starts a process for the episode alone: a call of the policy's that hangs ends no other's.
        rules: how much of what a call returns is shown.
    """

    def __init__(self, task: FunctionTask, open_checkers: Callable[[], Checkers], rules: ObservationRules) -> None:
        self.task = task
        self.times = Times()
        self._open_checkers = open_checkers
        self._rules = rules
        self._checkers = Checkers()
        self._episode = f"episode_{uuid.uuid4().hex}"
        self._steps: list[list[list[Call]]] = [[]]

    @property
    def messages(self) -> Messages:
        """The first request."""
        return self.task.messages

    @property
    def tools(self) -> Tools:
        """The services' functions that are offered at first."""
        return self.task.tools

    def reset(self) -> None:
        """Fresh services. Their process starts with the first call."""
        self.close()
        self._checkers = self._open_checkers()
        self._steps = [[]]
        self.times = Times()

    def close(self) -> None:
        """End the services' process."""
        started = time.perf_counter()
        self._checkers.close()
        self.times.destroy = time.perf_counter() - started

    def act(self, text: str, tool_format: ToolFormat) -> Outcome:
        """Execute the turn's calls; one without a call ends what the user asked, and the last of these the episode."""
        try:
            calls = calls_of(text, tool_format, self.task.all_tools)
        except ToolCallError:
            return Outcome(FORMAT_ERROR)
        if calls:
            return replace(self._execute(calls), action=_action(calls), calls=calls)
        if len(self._steps) == len(self.task.row["question"]):
            return replace(self._judge(), action="")
        request = self.task.request(len(self._steps))
        self._steps.append([])
        return Outcome(request, action="", speaker="user")

    def _execute(self, calls: tuple[Call, ...]) -> Outcome:
        started = time.perf_counter()
        try:
            shown = self._checkers.ask("execute", row=self.task.row, calls=as_json(calls), episode=self._episode)
        except CheckerError as error:  # names that are none: nothing was executed
            return Outcome(f"Error: {str(error).partition(': ')[2]}")
        except CheckerTimeout:
            return Outcome("", done=True, reward=0.0, status=TIMEOUT)
        finally:
            self.times.commands.append(time.perf_counter() - started)
        self._steps[-1].append(list(calls))
        return Outcome(self._rules.truncate("\n".join(shown)))

    def _judge(self) -> Outcome:
        started = time.perf_counter()
        turns = [[as_json(step) for step in steps] for steps in self._steps]
        try:
            return _verdict(lambda: self._checkers.ask("judge", row=self.task.row, turns=turns, episode=self._episode))
        finally:
            self.times.verify = time.perf_counter() - started


def calls_of(text: str, tool_format: ToolFormat, tools: Tools) -> tuple[Call, ...]:
    """The calls of a turn; none where it is plain text. Raises ToolCallError where one is begun and cannot be read."""
    try:
        return tool_format.parse(text, tools).calls
    except NoToolCallError:
        return ()


def as_json(calls: "tuple[Call, ...] | list[Call]") -> list[dict[str, object]]:
    """Calls as the worker takes them."""
    return [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]


def _verdict(ask: Callable[[], dict[str, bool]]) -> Outcome:
    """The package's word as an outcome. What it raises on, the policy said: a 0 like any other, under its own name."""
    try:
        passed = ask()["valid"]
    except CheckerError:
        return Outcome("", done=True, reward=0.0, status=Status.BROKEN)
    except CheckerTimeout:
        return Outcome("", done=True, reward=0.0, status=TIMEOUT)
    return Outcome("", done=True, reward=float(passed), status=Status.PASSED if passed else Status.FAILED)


def _action(calls: tuple[Call, ...]) -> str:
    written = ((call.name, ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())) for call in calls)
    return "; ".join(f"{name}({arguments})" for name, arguments in written)
