"""A sandbox is small: what its process 1 loads, and what it has for itself."""

import subprocess
import sys
from pathlib import Path

from leonardo.sandbox.driver import LayerStack
from leonardo.sandbox.drivers import MANY_IDS

MOST = 2.0e6  # bytes, with many others alive
OTHERS = 16
LARGE = {"dataclasses", "inspect", "pathlib", "subprocess", "tarfile", "traceback", "typing"}


def test_helpers_load_no_large_modules() -> None:
    root = str(Path(__file__).parents[2])
    code = f"import sys; sys.path.append({root!r}); import leonardo.sandbox.guard; print({LARGE} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-I", "-S", "-B", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_sandbox_shares_most_of_its_memory(tmp_path: Path, tiny_root_archive: Path) -> None:
    with MANY_IDS.opened() as driver:
        driver.unpack(tiny_root_archive, tmp_path / "base")
        backends = [driver.backend(LayerStack(tmp_path / "base")) for _ in range(OTHERS)]
        try:
            for backend in backends:
                backend.start()
                backend.prepare(("/workspace",), {"/tmp/file": "x"})
                backend.run_command("true")
            assert sum(backend.memory() for backend in backends) / OTHERS < 1.1 * MOST  # fewer share than benchmarked
        finally:
            for backend in backends:
                backend.close()
            driver.remove(tmp_path / "base")
