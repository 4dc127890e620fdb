"""The package's own rows as a corpus: single-turn rows of chosen categories, split as everywhere, each with its
reference answer and, to train on, a mistaken one.

A mistake is a choice, as in the desk's rows, and not a word that is wrong: another of the functions that are offered,
the last argument left out, a call where nothing fits. Both answers are judged by the package before they are used.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from leonardo.errors import InputError
from leonardo.functions.answered import AnsweredTask
from leonardo.functions.check import KNOWN_FAULTS, judge
from leonardo.functions.checkers import Checkers
from leonardo.functions.references import NoReference, Turns, changed, reference
from leonardo.functions.tasks import SINGLE_TURN, FunctionTask, Split, leaks, read_tasks, split_tasks
from leonardo.rollout.formats import Call, ToolFormat

Fits = Callable[[FunctionTask, tuple[Call, ...]], bool]
"""Whether a row and its reference answer are short enough."""


@dataclass
class Left:
    """How many rows of a category are left.

    Attributes:
        split: of the split.
        answered: of these, with a reference answer that passes in the formats that are asked for and, to train on, a
            mistaken one that does not.
        fitting: of these, short enough.
    """

    split: int = 0
    answered: int = 0
    fitting: int = 0


@dataclass(frozen=True)
class PublishedRows:
    """Both splits, in an order that deals the categories out evenly as long as they last.

    Attributes:
        left: split -> category -> how many.
    """

    train: list[AnsweredTask] = field(default_factory=list)
    held_out: list[AnsweredTask] = field(default_factory=list)
    left: dict[Split, dict[str, Left]] = field(default_factory=dict)

    def counts(self) -> dict[str, Any]:
        """``left`` as a JSON object."""
        return {split: {name: asdict(left) for name, left in parts.items()} for split, parts in self.left.items()}


def published_rows(
    checkers: Checkers, categories: Sequence[str], formats: Sequence[ToolFormat], fits: Fits, seed: int
) -> PublishedRows:
    """The rows of ``categories``.

    Args:
        checkers: of the package.
        categories: single-turn ones.
        formats: of the models; a row is left out whose answer one of them cannot carry.
        fits: which rows are short enough.
        seed: of their order.

    Raises InputError on a category that is not served, or where the splits share a question or a function.
    """
    if strange := set(categories) - set(SINGLE_TURN):
        raise InputError(f"no single-turn category {min(strange)}", f"There are: {', '.join(SINGLE_TURN)}")
    parts = split_tasks(read_tasks(checkers))
    if leaked := leaks(parts["train"], parts["held-out"]):
        raise InputError(f"{leaked[0][1]} is held out and known from {leaked[0][0]}", "See `leonardo functions split`")
    found = PublishedRows()
    for split, rows in (("train", found.train), ("held-out", found.held_out)):
        by_category = {}
        for category in categories:
            left = found.left.setdefault(split, {})[category] = Left()
            tasks = [task for task in parts[split] if task.kind == category]
            left.split = len(tasks)
            answered = [_answered(task, checkers, formats, mistaken=split == "train") for task in tasks]
            kept = [row for row in answered if row is not None]
            left.answered = len(kept)
            kept = [row for row in kept if fits(row.task, row.right)]
            left.fitting = len(kept)
            by_category[category] = Random(f"{seed} {split} {category} published").sample(kept, len(kept))
        rows += _dealt(list(by_category.values()))
    return found


def _dealt(parts: Sequence[Sequence[AnsweredTask]]) -> list[AnsweredTask]:
    longest = max(map(len, parts), default=0)
    return [part[number] for number in range(longest) for part in parts if number < len(part)]


def _answered(
    task: FunctionTask, checkers: Checkers, formats: Sequence[ToolFormat], *, mistaken: bool
) -> AnsweredTask | None:
    """The row with its answers; None where one of them cannot be had."""

    def fails(turns: Turns) -> bool:
        return _carried(task, turns, formats) and not any(
            judge(task, turns, checkers, tool_format, "mistake")[0] for tool_format in formats
        )

    if task.id in KNOWN_FAULTS:
        return None
    try:
        right = reference(task)
    except NoReference:
        return None
    if not all(judge(task, right, checkers, tool_format, "reference")[0] for tool_format in formats):
        return None
    wrong = next(filter(fails, _mistakes(task, right)), None) if mistaken else [[]]
    return None if wrong is None else AnsweredTask(task, tuple(right[0]), tuple(wrong[0]))


def _carried(task: FunctionTask, turns: Turns, formats: Sequence[ToolFormat]) -> bool:
    try:
        for tool_format in formats:
            tool_format.render(turns[0], task.tools)
    except ValueError:
        return False
    return True


def _mistakes(task: FunctionTask, right: Turns) -> Iterator[Turns]:
    """The likeliest first."""
    if right[0]:
        first, *rest = right[0]
        for function in task.row["function"]:
            if function["name"] != first.name:
                yield [[Call(function["name"], first.arguments), *rest]]
        if first.arguments:
            kept = list(first.arguments)[:-1]
            yield [[Call(first.name, {name: first.arguments[name] for name in kept}), *rest]]
    yield from changed(task)
