"""The hooks are imported into every process of upstream's: that must cost next to nothing."""

import subprocess
import sys
from pathlib import Path

import leonardo.hooks

NOT_FOR_ALL = {"__init__", "engine_process"}
"""The latter is imported by vLLM's worker processes alone, and ends with their parent."""


def test_hooks_import_nothing_heavy() -> None:
    names = {path.stem for path in Path(leonardo.hooks.__file__).parent.glob("*.py")} - NOT_FOR_ALL
    code = f"import sys, {', '.join(f'leonardo.hooks.{name}' for name in sorted(names))}; print(*sys.modules)"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = {name.partition(".")[0] for name in output.split()}
    heavy = {"torch", "transformers", "datasets", "pyarrow", "numpy", "scipy", "pydantic", "git", "spython", "rich"}
    assert not loaded & heavy
