"""What a verifier imports, and whether a state has it."""

import ast
import shlex
from collections.abc import Iterator, Sequence

from leonardo.sandbox.backend import SandboxBackend
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import PYTEST_MODULE

_FIND = """
import importlib.util, sys
sys.path.insert(0, '/tests')
for name in sys.argv[1:]:
    try:
        found = importlib.util.find_spec(name)
    except Exception:
        found = None
    if found is None:
        print(name)
"""


def imported_modules(task: Task) -> list[str]:
    """The modules that the task's pytest module cannot do without: imported when it is loaded, and not in a ``try``.

    Imports inside of functions are not among them, for what they name may be what the agent makes.
    """
    source = task.tests.get(PYTEST_MODULE)
    if source is None:
        return []
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    return sorted({"pytest", *_names(module.body)})


def missing_modules(backend: SandboxBackend, names: Sequence[str]) -> list[str]:
    """Those of ``names`` that the sandbox's Python cannot find."""
    if not names:
        return []
    result = backend.run_command(f"python3 -c {shlex.quote(_FIND)} {shlex.join(names)}", timeout=120)
    return result.stdout.split() if result.exit_code == 0 else list(names)


def _names(body: Sequence[ast.stmt]) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.Import(names=names):
                yield from (entry.name for entry in names)
            case ast.ImportFrom(module=str(name), level=0):
                yield name
            case ast.If(body=inner) | ast.With(body=inner):
                yield from _names(inner)
