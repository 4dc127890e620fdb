"""Rows of ``bfcl-eval`` as tasks, and the split that keeps what is evaluated out of what is trained on."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from leonardo.errors import InputError
from leonardo.files import digest_of, sha256_bytes
from leonardo.functions.checkers import Checkers

Row = Mapping[str, Any]
Messages = list[dict[str, str]]
Split = Literal["train", "held-out"]

SINGLE_TURN = (
    "simple_python",
    "simple_java",
    "simple_javascript",
    "multiple",
    "parallel",
    "parallel_multiple",
    "irrelevance",
    "live_simple",
    "live_multiple",
    "live_parallel",
    "live_parallel_multiple",
    "live_irrelevance",
)
MULTI_TURN = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
CATEGORIES = SINGLE_TURN + MULTI_TURN
"""Left out are ``live_relevance`` (it has no reference answers: any call passes), the agentic ones (``memory_*``,
``web_search_*``: they need embedding models and a search service) and ``format_sensitivity`` (it varies prompts)."""

HELD_OUT_SHARE = 3
"""One cluster of rows in so many is held out."""

# the package's names of types, as JSON Schema has them
_TYPES = {
    "integer": "integer", "byte": "integer", "short": "integer", "long": "integer", "Bigint": "integer",
    "float": "number", "double": "number", "number": "number",
    "boolean": "boolean", "bool": "boolean", "Boolean": "boolean",
    "array": "array", "list": "array", "tuple": "array", "Array": "array", "ArrayList": "array", "Queue": "array",
    "Stack": "array", "Set": "array",
    "dict": "object", "object": "object", "HashMap": "object", "Hashtable": "object",
}  # fmt: skip


@dataclass(frozen=True)
class FunctionTask:
    """One row.

    Attributes:
        id: the row's.
        kind: its category.
        row: the row as the worker gives and takes it.
        system: what the policy is told first; "" for nothing.
    """

    id: str
    kind: str
    row: Row
    system: str = field(default="Call the functions that the request needs; without a fitting one, answer in words.")

    @property
    def multi_turn(self) -> bool:
        """Whether the user speaks more than once, and calls are executed."""
        return "initial_config" in self.row

    @cached_property
    def tools(self) -> list[dict[str, Any]]:
        """The functions in OpenAI's form."""
        return [tool_of(function) for function in self.row["shown"]]

    @cached_property
    def all_tools(self) -> list[dict[str, Any]]:
        """The functions that may be called at some time: some are offered later in a conversation only."""
        later = [function for functions in self.row.get("missed_function", {}).values() for function in functions]
        return [*self.tools, *map(tool_of, later)]

    @cached_property
    def messages(self) -> Messages:
        """The conversation that an episode begins with."""
        first = [{"role": said["role"], "content": said["content"]} for said in self.row["question"][0]]
        if self.system and first[0]["role"] != "system":
            first.insert(0, {"role": "system", "content": self.system})
        return first

    def request(self, turn: int) -> str:
        """What the user says in a later turn; functions that are offered with it are written out."""
        said = [message["content"] for message in self.row["question"][turn]]
        if more := self.row.get("missed_function", {}).get(str(turn)):
            said.append(
                "\n".join(
                    [*(json.dumps(tool_of(function)["function"]) for function in more), self.row["more_functions"]]
                )
            )
        return "\n".join(said)

    @property
    def digest(self) -> str:
        """Hex SHA-256 over everything that decides what the policy sees and how it is judged."""
        return digest_of([self.system, dict(self.row)])


def read_tasks(checkers: Checkers, categories: Iterable[str] = CATEGORIES) -> list[FunctionTask]:
    """The package's rows of these categories. Raises InputError on a category that is not served."""
    tasks = []
    for category in categories:
        if category not in CATEGORIES:
            raise InputError(f"no function-calling category {category}", f"There are: {', '.join(CATEGORIES)}")
        tasks += [FunctionTask(row["id"], category, row) for row in checkers.ask("rows", category=category)]
    return tasks


def tool_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """A function of a row in OpenAI's form; names of types become JSON Schema's, names of functions stay."""
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "description": function["description"],
            "parameters": _schema(function["parameters"]),
        },
    }


def _schema(described: Mapping[str, Any]) -> dict[str, Any]:
    schema = dict(described)
    if "type" in schema:
        schema["type"] = _TYPES.get(schema["type"], "string")
    if isinstance(schema.get("properties"), Mapping):
        schema["properties"] = {name: _schema(value) for name, value in schema["properties"].items()}
    if isinstance(schema.get("items"), Mapping):
        schema["items"] = _schema(schema["items"])
    return schema


def clusters(tasks: Sequence[FunctionTask]) -> list[list[FunctionTask]]:
    """The rows in groups that share a question, or a function (name and parameters), directly or through others.

    All multi-turn rows share the functions of a few simulated services, so that there only the scenario counts (its
    number: the categories hold variants of the same scenarios) and what the user says.
    """
    parent = list(range(len(tasks)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = parent[parent[index]]
            index = parent[index]
        return index

    first: dict[str, int] = {}
    for index, task in enumerate(tasks):
        for trait in traits(task):
            parent[root(index)] = root(first.setdefault(trait, index))
    grouped = defaultdict(list)
    for index, task in enumerate(tasks):
        grouped[root(index)].append(task)
    return list(grouped.values())


def traits(task: FunctionTask) -> set[str]:
    """What a row may not share with one of the other split."""
    said = " ".join(message["content"] for turn in task.row["question"] for message in turn)
    found = {"question " + " ".join(re.findall(r"\w+", said.lower()))}
    if task.multi_turn:
        return found | {f"scenario {task.id.rpartition('_')[2]}"}
    return found | {
        "function " + digest_of([function["name"], function["parameters"]]) for function in task.row["function"]
    }


def split_tasks(tasks: Sequence[FunctionTask]) -> dict[Split, list[FunctionTask]]:
    """Both splits. A cluster goes as one, by the SHA-256 of the least id in it: a third of the clusters is held out.

    Give all categories, whatever is used of them: a cluster may be held together by a row of another category.
    """
    held_out = set()
    for cluster in clusters(tasks):
        if int(sha256_bytes(min(task.id for task in cluster).encode())[:8], 16) % HELD_OUT_SHARE == 0:
            held_out |= {task.id for task in cluster}
    return {
        "train": [task for task in tasks if task.id not in held_out],
        "held-out": [task for task in tasks if task.id in held_out],
    }


def leaks(train: Iterable[FunctionTask], held_out: Iterable[FunctionTask]) -> list[tuple[str, str]]:
    """Pairs (train id, held-out id) that share a question, a function or a scenario, one for each held-out row."""
    seen = {trait: task.id for task in train for trait in traits(task)}
    return [
        (next(seen[trait] for trait in traits(task) if trait in seen), task.id)
        for task in held_out
        if any(trait in seen for trait in traits(task))
    ]
