"""Which flags upstream's trainer takes: read off its sources, without importing them.

The trainer makes a flag of every field of the dataclasses that it hands to its argument parser.
"""

import ast
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from leonardo.errors import InputError

PACKAGE = Path("training/open-instruct/open_instruct")
TRAINER = PACKAGE / "grpo_fast.py"
_PARSER = "ArgumentParserPlus"


def known_flags(tree: Path) -> frozenset[str]:
    """Names of the flags that the trainer in the checkout ``tree`` takes.

    Raises:
        InputError: there is no trainer, or its sources do not say which flags it takes.
    """
    trainer = tree / TRAINER
    if not trainer.is_file():
        raise InputError(f"{tree} holds no trainer ({TRAINER} is missing)", "Fetch it: make apply-patches")
    wanted = set(_handed_to_parser(ast.parse(trainer.read_text(encoding="utf-8"))))
    if not wanted:
        raise InputError(f"{trainer} hands no dataclasses to {_PARSER}", "This upstream is another than the pinned one")
    classes: dict[str, ast.ClassDef] = {}
    for path in sorted((tree / PACKAGE).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and _is_dataclass(node):
                classes.setdefault(node.name, node)
    if missing := sorted(wanted - set(classes)):
        raise InputError(f"{trainer} takes flags of {', '.join(missing)}, which no file defines", "Is the tree whole?")
    return frozenset(name for wanted_class in wanted for name in _fields(wanted_class, classes))


def command_line(settings: Mapping[str, Any], known: frozenset[str]) -> list[str]:
    """``settings`` as arguments: ``{"beta": 0.0}`` gives ``["--beta", "0.0"]``.

    A list gives several values, a mapping its JSON, None leaves the flag out (upstream's default).

    Raises:
        InputError: a flag that the trainer does not take; names it and what it may have meant.
    """
    arguments: list[str] = []
    for name, value in settings.items():
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"Did you mean {close[0]}?" if close else "Remove it from the stage or model file"
            raise InputError(f"upstream's trainer takes no flag {name}", hint)
        if value is not None:
            arguments += [f"--{name}", *_texts(value)]
    return arguments


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [json.dumps(value)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [text for item in value for text in _texts(item)]
    return [str(value)]


def _handed_to_parser(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and _last_name(node.func) == _PARSER and node.args:
            for element in getattr(node.args[0], "elts", [node.args[0]]):
                yield _last_name(element)


def _fields(name: str, classes: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    node = classes.get(name)
    if node is None:
        return
    for base in node.bases:
        yield from _fields(_last_name(base), classes)
    for statement in node.body:
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and _last_name(statement.annotation) != "ClassVar"
            and not _not_in_init(statement.value)
        ):
            yield statement.target.id


def _not_in_init(value: ast.expr | None) -> bool:
    """``field(init=False)``: no flag is made of it."""
    return isinstance(value, ast.Call) and any(
        keyword.arg == "init" and isinstance(keyword.value, ast.Constant) and keyword.value.value is False
        for keyword in value.keywords
    )


def _is_dataclass(node: ast.ClassDef) -> bool:
    names = [_last_name(item.func if isinstance(item, ast.Call) else item) for item in node.decorator_list]
    return "dataclass" in names


def _last_name(node: ast.expr) -> str:
    """``a.b.C`` and ``C[int]`` are ``C``."""
    if isinstance(node, ast.Subscript):
        return _last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
