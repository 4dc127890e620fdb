"""Function calling at desk size: generated rows in the package's form, with a vocabulary that a tiny policy can learn.

The rows are judged by the package's own checkers. As with the desk's terminal tasks a mistake differs from the right
answer in a choice (which function, whether to call, how often, what was left out), never in a word that is copied:
copying is learnt from all demonstrations together, choosing well is left to reinforcement learning.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

from leonardo.errors import InputError
from leonardo.files import digest_of
from leonardo.functions.answered import AnsweredTask
from leonardo.functions.tasks import HELD_OUT_SHARE, FunctionTask, Split
from leonardo.rollout.formats import Call
from leonardo.tasks.desk.scene import FOLDERS, NUMBERS, STEMS

Category = Literal["simple_python", "multiple", "parallel", "irrelevance"]
CATEGORIES: tuple[Category, ...] = ("simple_python", "multiple", "parallel", "irrelevance")
REFUSAL = "No function fits."
SYSTEM = "Call what fits."
PACES = ("fast", "slow")


@dataclass(frozen=True)
class Function:
    """A function of the desk's.

    Attributes:
        name: of it.
        verb: what a request for it begins with.
        subject: the parameter that names what it is done to, and its words.
        amount: the parameter that says how much, in the request's words too.
    """

    name: str
    verb: str
    subject: tuple[str, Sequence[str]]
    amount: str

    def described(self, paced: bool) -> dict[str, Any]:
        """As a row describes it; ``paced``: with the optional parameter."""
        properties = {
            self.subject[0]: {"type": "string", "description": "What it is done to."},
            self.amount: {"type": "integer", "description": "How much."},
        }
        if paced:
            properties["pace"] = {"type": "string", "description": "fast or slow."}
        return {
            "name": self.name,
            "description": f"{self.verb}.",
            "parameters": {"type": "dict", "properties": properties, "required": [self.subject[0], self.amount]},
        }

    def call(self, subject: str, amount: str, **more: str) -> Call:
        """A call of it."""
        return Call(self.name, {self.subject[0]: subject, self.amount: int(amount), **more})


_ROOM, _PLANT = ("room", FOLDERS), ("plant", STEMS)
PAIRS: tuple[tuple[Function, Function], ...] = (
    (Function("heat_room", "Heat", _ROOM, "degrees"), Function("cool_room", "Cool", _ROOM, "degrees")),
    (Function("light_room", "Light", _ROOM, "percent"), Function("shade_room", "Shade", _ROOM, "percent")),
    (Function("water_plant", "Water", _PLANT, "liters"), Function("drain_plant", "Drain", _PLANT, "liters")),
    (Function("sell_plant", "Sell", _PLANT, "pieces"), Function("order_plant", "Order", _PLANT, "pieces")),
)
"""Two functions that are taken for each other, each."""

FUNCTIONS = tuple(function for pair in PAIRS for function in pair)


def generate(split: Split, count: int, seed: int, categories: Sequence[str] = CATEGORIES) -> list[AnsweredTask]:
    """``count`` distinct rows of ``split``, dealt out evenly over ``categories``; a smaller count gives a prefix."""
    if unknown := set(categories) - set(CATEGORIES):
        raise InputError(f"no desk function category {min(unknown)}", f"There are {', '.join(CATEGORIES)}")
    streams = {category: Random(f"{seed} {split} {category} functions") for category in categories}
    tasks: dict[str, AnsweredTask] = {}
    for index in range(count):
        category = categories[index % len(categories)]
        for _ in range(1000):
            made = _MAKERS[category](streams[category])
            if split_of(made.task.id) == split and made.task.id not in tasks:
                tasks[made.task.id] = made
                break
        else:
            raise InputError(f"{count} {split} desk function rows are too many", "Ask for fewer")
    return list(tasks.values())


def split_of(task_id: str) -> Split:
    """The split of a row, by the hash in its id."""
    return "held-out" if int(task_id[-8:], 16) % HELD_OUT_SHARE == 0 else "train"


def _simple(random: Random) -> AnsweredTask:
    """One function, all of whose parameters the request names; the mistake leaves the optional one out."""
    function = random.choice(FUNCTIONS)
    subject, amount, pace = random.choice(function.subject[1]), random.choice(NUMBERS), random.choice(PACES)
    request = f"{function.verb} the {subject} by {amount} {function.amount}, {pace}."
    right = (function.call(subject, amount, pace=pace),)
    return _made("simple_python", request, [function.described(paced=True)], right, (function.call(subject, amount),))


def _multiple(random: Random) -> AnsweredTask:
    """Two functions that are alike; the mistake takes the other."""
    pair = random.choice(PAIRS)
    function, other = random.sample(pair, 2)
    subject, amount = random.choice(function.subject[1]), random.choice(NUMBERS)
    request = f"{function.verb} the {subject} by {amount} {function.amount}."
    offered = [entry.described(paced=False) for entry in random.sample(pair, 2)]
    right, wrong = (entry.call(subject, amount) for entry in (function, other))
    return _made("multiple", request, offered, (right,), (wrong,))


def _parallel(random: Random) -> AnsweredTask:
    """Two things to do with one function; the mistake does the first only."""
    function = random.choice(FUNCTIONS)
    subjects, amount = random.sample(list(function.subject[1]), 2), random.choice(NUMBERS)
    request = f"{function.verb} the {subjects[0]} and the {subjects[1]} by {amount} {function.amount}."
    right = tuple(function.call(subject, amount) for subject in subjects)
    return _made("parallel", request, [function.described(paced=False)], right, right[:1])


def _irrelevance(random: Random) -> AnsweredTask:
    """A request that the offered functions do not serve; the mistake calls the first of them."""
    asked, pair = random.sample(PAIRS, 2)
    function = random.choice(asked)
    subject, amount = random.choice(function.subject[1]), random.choice(NUMBERS)
    request = f"{function.verb} the {subject} by {amount} {function.amount}."
    first, second = random.sample(pair, 2)
    offered = [entry.described(paced=False) for entry in (first, second)]
    return _made("irrelevance", request, offered, (), (first.call(subject, amount),))


_MAKERS = {"simple_python": _simple, "multiple": _multiple, "parallel": _parallel, "irrelevance": _irrelevance}


def _made(
    category: Category,
    request: str,
    functions: Sequence[Mapping[str, Any]],
    right: tuple[Call, ...],
    wrong: tuple[Call, ...],
) -> AnsweredTask:
    """The row, in the package's form. Its id names everything that the policy sees, and orders of no meaning too."""
    digest = digest_of([category, request, list(functions)])
    row = {
        "id": f"desk-{category}-{digest[:8]}",
        "category": category,
        "question": [[{"role": "user", "content": request}]],
        "function": list(functions),
        "shown": list(functions),
        "answer": [{call.name: {name: [value] for name, value in call.arguments.items()}} for call in right],
    }
    return AnsweredTask(FunctionTask(row["id"], category, row, SYSTEM), right, wrong)
