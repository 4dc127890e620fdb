"""Desk function rows as demonstrations to imitate: one turn each, right or mistaken."""

from collections.abc import Iterable
from random import Random

from leonardo.engine.desk.demonstrations import Demonstration
from leonardo.functions.desk import REFUSAL, DeskFunctionTask
from leonardo.rollout.formats import ToolFormat


def function_demonstrations(
    tasks: Iterable[DeskFunctionTask], tool_format: ToolFormat, *, right: float, seed: int
) -> list[Demonstration]:
    """One demonstration a row, right with the probability ``right``."""
    random = Random(f"{seed} function demonstrations")
    made = []
    for task in tasks:
        calls, is_right = task.attempt(random, right)
        text = tool_format.render(calls, task.task.tools) if calls else REFUSAL
        made.append(Demonstration(task.task.messages, ((text, ""),), is_right, tuple(task.task.tools)))
    return made
