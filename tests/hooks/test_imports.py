"""The hooks are imported into every process of upstream's: that must cost next to nothing."""

import subprocess
import sys

MODULES = "import leonardo.hooks, leonardo.hooks.sandbox, leonardo.hooks.weights, sys; print(*sys.modules)"


def test_hooks_import_nothing_heavy() -> None:
    output = subprocess.run([sys.executable, "-c", MODULES], capture_output=True, text=True, check=True).stdout
    loaded = {name.partition(".")[0] for name in output.split()}
    heavy = {"torch", "transformers", "datasets", "pyarrow", "numpy", "scipy", "pydantic", "git", "spython", "rich"}
    assert not loaded & heavy
