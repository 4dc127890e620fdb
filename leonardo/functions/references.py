"""A row's reference answer as calls, and a copy of it with one argument changed."""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from leonardo.functions.tasks import FunctionTask, Row
from leonardo.rollout.formats import Call

Turns = list[list[Call]]
"""Calls, a list for each time the user speaks."""


class NoReference(ValueError):
    """The package's answer cannot be written as calls; the message says why."""


def reference(task: FunctionTask) -> Turns:
    """The package's reference answer: of several allowed values the first, and no argument that may be left out.

    Raises NoReference.
    """
    return _written(task, _values(task))


def changed(task: FunctionTask) -> Iterator[Turns]:
    """Copies of the reference with one argument changed, argument by argument.

    Where no call has one, the first call gets one; where nothing is to be called, the first function is called. Raises
    NoReference.
    """
    turns = _values(task)
    places = [
        (turn, number, name)
        for turn, calls in enumerate(turns)
        for number, call in enumerate(calls)
        for name in call.arguments
    ]
    for turn, number, name in places:
        call = turns[turn][number]
        allowed = () if task.multi_turn else _allowed(task.row["answer"][number], name)
        other = Call(call.name, {**call.arguments, name: _other(call.arguments[name], allowed)})
        yield _written(task, _replaced(turns, turn, number, other))
    if not places:
        calls = [(turn, number) for turn, said in enumerate(turns) for number, _ in enumerate(said)]
        for turn, number in calls:
            yield _replaced(turns, turn, number, Call(turns[turn][number].name, {"corrupted": "corrupted"}))
        if not calls:
            yield [[Call(task.row["function"][0]["name"] if task.row["function"] else "corrupted", {})]]


def _replaced(turns: Turns, turn: int, number: int, call: Call) -> Turns:
    copy = [list(calls) for calls in turns]
    copy[turn][number] = call
    return copy


def _values(task: FunctionTask) -> Turns:
    if task.multi_turn:
        names = parameter_names(task.row)
        return [[_executed(source, names) for source in turn] for turn in task.row["answer"]]
    functions = {function["name"]: function for function in task.row["function"]}
    return [[_chosen(answer, functions) for answer in task.row["answer"]]]


def _written(task: FunctionTask, turns: Turns) -> Turns:
    """Arguments of functions in another language are source text in it."""
    if task.kind not in _WRITERS:
        return turns
    types = {function["name"]: function["parameters"]["properties"] for function in task.row["function"]}
    write = _WRITERS[task.kind]
    return [
        [
            Call(call.name, {name: write(value, types[call.name][name]) for name, value in call.arguments.items()})
            for call in calls
        ]
        for calls in turns
    ]


def parameter_names(row: Row) -> dict[str, list[str]]:
    """The parameters of every function of a multi-turn row, in order."""
    missed = [function for functions in row.get("missed_function", {}).values() for function in functions]
    return {function["name"]: list(function["parameters"]["properties"]) for function in [*row["function"], *missed]}


def _executed(source: str, names: Mapping[str, Sequence[str]]) -> Call:
    """``f(1, b=2)`` as a call; positions are named by the function's description."""
    call = ast.parse(source, mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise NoReference(f"{source} is no call")
    arguments = dict(zip(names.get(call.func.id, ()), map(ast.literal_eval, call.args), strict=False))
    arguments |= {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in call.keywords}
    return Call(call.func.id, arguments)


def _chosen(answer: Mapping[str, Any], functions: Mapping[str, Any]) -> Call:
    ((name, allowed),) = answer.items()
    if name not in functions:
        raise NoReference(f"the answer calls {name}, which is none of the row's functions")
    types = functions[name]["parameters"]["properties"]
    arguments = {}
    for parameter, values in allowed.items():
        if "" in values and values != [""]:
            kept = [value for value in values if value != ""]
            if parameter not in functions[name]["parameters"]["required"]:
                continue
            values = kept
        elif values == [""] and parameter not in functions[name]["parameters"]["required"]:
            continue
        if parameter not in types:
            raise NoReference(f"the answer gives {name} a parameter {parameter}, which it does not have")
        if not values:
            raise NoReference(f"the answer allows {name} no value of {parameter}")
        arguments[parameter] = _first(values[0])
    return Call(name, arguments)


def _first(value: Any) -> Any:
    """An allowed value itself: objects in it list what is allowed for each of their keys."""
    if isinstance(value, dict):
        return {key: values[0] for key, values in value.items() if "" not in values}
    if isinstance(value, list):
        return [_first(entry) for entry in value]
    return value


def _java(value: Any, described: Mapping[str, Any]) -> str:
    """A value as Java source, which is what the package wants for a parameter in that language."""
    kind = described["type"]
    if isinstance(value, str) and kind != "char":
        return value
    if kind == "long":
        return f"{value}L"
    if kind == "float":
        return f"{value}f"
    inner = described.get("items", {}).get("type", "any")
    if kind == "ArrayList":
        return f"new ArrayList<>(Arrays.asList({', '.join(_java_literal(entry, inner) for entry in value)}))"
    if kind == "Array":
        # the package takes the text of a string in an array of a known type as it stands, quotes and all
        entries = [entry if isinstance(entry, str) else _java_literal(entry, inner) for entry in value]
        return f"new {inner}[]{{{', '.join(entries)}}}"
    if kind == "HashMap":
        puts = " ".join(f'put("{key}", {_java_literal(entry, "any")});' for key, entry in value.items())
        return f"new HashMap<String, Object>() {{{{ {puts} }}}}"
    return json.dumps(value)


def _java_literal(value: Any, kind: str) -> str:
    if kind == "long":
        return f"{value}L"
    return f"{value}f" if kind == "float" else json.dumps(value)


def _javascript(value: Any, described: Mapping[str, Any]) -> str:
    if isinstance(value, str):
        return value
    return f"{value}n" if described["type"] == "Bigint" else json.dumps(value)


_WRITERS = {"simple_java": _java, "simple_javascript": _javascript}


def _allowed(answer: Mapping[str, Any], parameter: str) -> Sequence[Any]:
    (parameters,) = answer.values()
    return parameters.get(parameter, ())


def _other(value: Any, allowed: Sequence[Any]) -> Any:
    """Another value of the same type, none of ``allowed`` where that can be."""
    if isinstance(value, bool):
        return "corrupted" if (not value) in allowed else not value
    if isinstance(value, int | float):
        return value + 1_000_003
    if isinstance(value, list):
        return [*value, _other(value[0], ()) if value else "corrupted"]
    if isinstance(value, dict):
        return {**value, "corrupted": "corrupted"}
    return f"{value} corrupted" if isinstance(value, str) else "corrupted"
