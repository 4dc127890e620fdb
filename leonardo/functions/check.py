"""Are the package's verdicts what they are said to be? Its reference answers pass through our harness, and a copy with
one argument changed does not.

Every answer goes the whole way: calls are rendered in a tool-call format, parsed again, executed or compared by the
package. A row whose reference cannot pass for a reason of the package's is listed with that reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from leonardo.functions.checkers import CheckerError, Checkers
from leonardo.functions.environment import as_json
from leonardo.functions.references import Turns, changed, reference
from leonardo.functions.tasks import FunctionTask
from leonardo.rollout.formats import Call, ToolFormat


@dataclass
class CategoryCheck:
    """What came of a category's rows.

    Attributes:
        category, rows: its name, and how many rows.
        reference_passes: of the rows that have a reference that can pass.
        corrupted_passes: of the same rows; ``corrupted`` of them could be changed.
        left_out: id -> why the package's own answer cannot pass, or not be said in this format.
        second_choice: rows where the simulated service does not heed the first argument, so that another was changed.
        unheeded: rows where it heeds none.
    """

    category: str
    rows: int = 0
    reference_passes: int = 0
    corrupted: int = 0
    corrupted_passes: list[str] = field(default_factory=list)
    reference_fails: dict[str, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    second_choice: int = 0
    unheeded: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """All references pass, no corrupted copy does."""
        return not self.reference_fails and not self.corrupted_passes and self.corrupted > 0


def check_rows(
    tasks: Sequence[FunctionTask],
    checkers: Checkers,
    tool_format: ToolFormat,
    on_row: Callable[[], None] = lambda: None,
) -> list[CategoryCheck]:
    """Check the rows, category by category, in the order in which the categories come."""
    found: dict[str, CategoryCheck] = {}
    for task in tasks:
        check = found.setdefault(task.kind, CategoryCheck(task.kind))
        check.rows += 1
        _check(task, check, checkers, tool_format)
        on_row()
    return list(found.values())


def _check(task: FunctionTask, check: CategoryCheck, checkers: Checkers, tool_format: ToolFormat) -> None:
    if reason := KNOWN_FAULTS.get(task.id):
        check.left_out[task.id] = reason
        return
    try:
        turns = reference(task)
        for calls in turns:
            _said(calls, task, tool_format)
    except ValueError as error:  # the package's answer, or what a format cannot carry
        check.left_out[task.id] = str(error)
        return
    passes, why = judge(task, turns, checkers, tool_format, "reference")
    if not passes:
        check.reference_fails[task.id] = why
        return
    check.reference_passes += 1
    other, heeded = _first_heeded(task, turns, checkers, check)
    passes, _ = judge(task, other, checkers, tool_format, "corrupted")
    if passes and not heeded:
        check.unheeded.append(task.id)
        return
    check.corrupted += 1
    if passes:
        check.corrupted_passes.append(task.id)


def judge(task: FunctionTask, turns: Turns, checkers: Checkers, tool_format: ToolFormat, name: str) -> tuple[bool, str]:
    """The package's verdict on calls that were rendered and parsed again, and why it is not a pass."""
    try:
        said = [_said(calls, task, tool_format) for calls in turns]
        if task.multi_turn:
            steps = [[calls] if calls else [] for calls in said]
            verdict = checkers.ask("judge", row=task.row, turns=steps, episode=f"{name}_{task.id}")
        else:
            verdict = checkers.ask("check", row=task.row, calls=said[0])
    except (ValueError, CheckerError) as error:
        return False, str(error)
    return verdict["valid"], verdict["why"]


def _said(calls: Sequence[Call], task: FunctionTask, tool_format: ToolFormat) -> list[dict[str, object]]:
    if not calls:
        return []
    tools = task.all_tools
    return as_json(tool_format.parse(tool_format.render(calls, tools), tools).calls)


def _first_heeded(task: FunctionTask, turns: Turns, checkers: Checkers, check: CategoryCheck) -> tuple[Turns, bool]:
    """The reference with its first argument changed; of a simulated service's the first that changes what it returns.

    And whether there is one.
    """
    candidates = list(changed(task))
    if not task.multi_turn:
        return candidates[0], True
    returned = _returned(task, turns, checkers, "asis")
    for number, candidate in enumerate(candidates):
        if _returned(task, candidate, checkers, f"changed{number}") != returned:
            check.second_choice += number > 0
            return candidate, True
    return candidates[0], False


def _returned(task: FunctionTask, turns: Turns, checkers: Checkers, name: str) -> list[str]:
    calls = as_json([call for turn in turns for call in turn])
    return checkers.ask("execute", row=task.row, calls=calls, episode=f"{name}_{task.id}", last=True)


_UNTYPED_LIST = (
    "a list of any holds a number or a truth value, and the package's Java converter reads its entries as text"
)
KNOWN_FAULTS = {"simple_java_36": _UNTYPED_LIST, "simple_java_65": _UNTYPED_LIST}
"""Rows for which no answer can pass, and why; found by reading, for the checker does not say it."""
