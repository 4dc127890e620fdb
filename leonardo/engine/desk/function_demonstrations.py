"""Function rows as demonstrations to imitate: one turn each, right or mistaken."""

from collections.abc import Sequence
from random import Random

from leonardo.engine.desk.demonstrations import Demonstration
from leonardo.functions.answered import AnsweredTask
from leonardo.functions.desk import REFUSAL
from leonardo.rollout.formats import ToolFormat


def function_demonstrations(
    tasks: Sequence[AnsweredTask], tool_format: ToolFormat, *, right: float, seed: int, count: int = 0
) -> list[Demonstration]:
    """``count`` demonstrations, each right with the probability ``right``: one a row, and the rows again where more are
    asked for than there are; 0: one a row."""
    random = Random(f"{seed} function demonstrations")
    made = []
    for number in range(count or len(tasks)):
        task = tasks[number % len(tasks)]
        calls, is_right = task.attempt(random, right)
        text = tool_format.render(calls, task.task.tools) if calls else REFUSAL
        made.append(Demonstration(task.task.messages, ((text, ""),), is_right, tuple(task.task.tools)))
    return made
