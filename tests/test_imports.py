"""Which commands import PyTorch, which takes seconds: those that make, train or read a model, and no other."""

import ast
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer

from leonardo.cli import app

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "transformers", "accelerate"}
NEED_IT = {"card", "demo", "families check", "stage run", "transfer"}


def modules_of(body: list[ast.stmt]) -> Iterator[str]:
    """What statements import when they run; what is for type checkers alone is not among it."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            for part in ("body", "orelse", "handlers", "finalbody"):
                inner = getattr(node, part, [])
                if not isinstance(node, ast.FunctionDef | ast.Lambda) and isinstance(inner, list):
                    yield from modules_of(inner)


@cache
def direct(module: str) -> frozenset[str]:
    """What a module of ours imports itself, its package included; nothing for others, and for what is no module."""
    stem = ROOT.joinpath(*module.split("."))
    path = next((place for place in (stem.with_suffix(".py"), stem / "__init__.py") if place.is_file()), None)
    if path is None or not module.startswith("leonardo"):
        return frozenset()
    return frozenset({*modules_of(ast.parse(path.read_text()).body), module.rpartition(".")[0] or module})


def imported(modules: Iterator[str]) -> set[str]:
    """The packages that importing these imports."""
    found: set[str] = set()
    waiting = [*modules]
    while waiting:
        if (name := waiting.pop()) not in found:
            found.add(name)
            waiting += direct(name)
    return {name.split(".")[0] for name in found}


def run_by(function: Any) -> Iterator[str]:
    """The modules that a command imports as it runs, in functions of its own module, too."""
    source = Path(inspect.getfile(function))
    yield ".".join(source.relative_to(ROOT).with_suffix("").parts)
    functions = {node.name: node for node in ast.parse(source.read_text()).body if isinstance(node, ast.FunctionDef)}
    waiting, seen = [function.__name__], set()
    while waiting:
        if (name := waiting.pop()) not in seen:
            seen.add(name)
            yield from modules_of(functions[name].body)
            waiting += [node.id for node in ast.walk(functions[name]) if getattr(node, "id", "") in functions]


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    for key, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{name} {key}".strip())
    if not hasattr(command, "commands"):
        yield name, inspect.unwrap(command.callback)


def test_only_these_commands_import_pytorch() -> None:
    found = {name: imported(run_by(function)) for name, function in commands(typer.main.get_command(app))}
    assert len(found) > 40 and "report" in found and "launch collect" in found
    assert {name for name, parts in found.items() if parts & HEAVY} == NEED_IT


def test_a_report_is_written_where_there_is_no_pytorch(tmp_path: Path) -> None:
    script = f"import sys; sys.modules.update(dict.fromkeys({sorted(HEAVY)})); from leonardo.cli import app; app()"
    command = [sys.executable, "-c", script, "report", "--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    assert (tmp_path / "ladder.html").is_file()
