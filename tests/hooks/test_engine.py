"""What vLLM's engine processes are told to import is there."""

import ast
import importlib.util

from leonardo.hooks.engine import PROCESS_EXTENSION, engine_hooks


def test_extension_of_the_worker_can_be_found() -> None:
    assert engine_hooks() == {"worker_extension_cls": PROCESS_EXTENSION}
    module, _, name = PROCESS_EXTENSION.rpartition(".")
    spec = importlib.util.find_spec(module)  # importing it would tie this process to its parent
    assert spec is not None and spec.loader is not None
    source = spec.loader.get_source(module)  # type: ignore[attr-defined]
    extension = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
    # vLLM refuses an extension with a name that its worker has
    assert not [node for node in extension.body if isinstance(node, ast.FunctionDef)]
