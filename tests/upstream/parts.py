"""Parts of upstream's modules, run without what the rest of them imports."""

import ast
from collections.abc import Mapping
from typing import Any

HOOKS = "leonardo.hooks"


def run_parts(source: str, names: set[str], space: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Run of a module: the top-level functions and classes called ``names``, and what the patches insert at top level.

    Args:
        source: the module's text, patched or not.
        names: what is wanted; a method's class is enough.
        space: stands for what the module imports, and for the rest of it.
        file: the module's name in tracebacks.

    Returns:
        The module's namespace.
    """
    wanted, hooks, found = [], set(), set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(HOOKS):
            hooks |= {alias.asname or alias.name for alias in node.names}
            wanted.append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if node.name in names:
                found.add(node.name)
                wanted.append(node)
        elif isinstance(node, ast.Expr | ast.Assign) and _calls(node.value, hooks):
            wanted.append(node)
    assert found == names, f"upstream has renamed {', '.join(sorted(names - found))}"
    future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
    result = {"__name__": __name__, **space}  # dataclasses look their module up
    exec(compile(ast.fix_missing_locations(ast.Module([future, *wanted], [])), file, "exec"), result)
    return result


def _calls(value: ast.expr, hooks: set[str]) -> bool:
    return isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in hooks
