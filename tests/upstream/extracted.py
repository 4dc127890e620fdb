"""Upstream's functions, taken out of its modules by name, so that they run without Ray, vLLM or a GPU."""

import ast
import builtins
import dataclasses
from collections.abc import Iterable
from typing import Any
from unittest import mock

ROOT = "training/open-instruct/open_instruct"


def define(source: str, names: Iterable[str], space: dict[str, Any]) -> dict[str, Any]:
    """Define functions and classes of ``source`` (methods too: as functions) in ``space``, and return it.

    The hooks that the source imports at its head are imported; other names that are not in ``space`` are stand-ins.
    Decorators are kept where they are hooks or make data classes.
    """
    wanted = set(names)
    module = ast.parse(source)
    hooks = [
        node for node in module.body if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("leonardo.")
    ]
    kept = {alias.name for node in hooks for alias in node.names} | {"dataclass"}
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name in wanted:
            node.decorator_list = [each for each in node.decorator_list if _last_name(each) in kept]
            found.append(node)
    missing = wanted - {node.name for node in found}
    assert not missing, f"upstream has renamed {', '.join(sorted(missing))}"
    space.setdefault("dataclass", dataclasses.dataclass)
    space.setdefault("dataclasses", dataclasses)
    space.setdefault("field", dataclasses.field)
    used = {node.id for each in found for node in ast.walk(each) if isinstance(node, ast.Name)}
    for name in used - kept - wanted - space.keys() - set(dir(builtins)):
        space[name] = mock.MagicMock(name=name)
    code = ast.Module([ast.ImportFrom("__future__", [ast.alias("annotations")], 0), *hooks, *found], [])
    exec(compile(ast.fix_missing_locations(code), "<upstream>", "exec"), space)
    return space


def _last_name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
