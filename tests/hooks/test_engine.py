"""What vLLM's engine processes are told to import is there, and its core process is tied to the one that starts it."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


CORE = """
import ctypes, sys

class EngineCoreProc:
    @staticmethod
    def run_engine_core(*arguments, **options):
        signal = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(signal), 0, 0, 0)  # PR_GET_PDEATHSIG
        print(arguments, options, signal.value, flush=True)
"""
STARTER = """
import multiprocessing, sys
from leonardo.hooks.engine import tie_engine
from vllm.v1.engine.core import EngineCoreProc

if __name__ == "__main__":
    tie_engine()
    tie_engine()
    context = multiprocessing.get_context(sys.argv[1])
    process = context.Process(target=EngineCoreProc.run_engine_core, args=(1,), kwargs={"dp_rank": 0})
    process.start()
    process.join()
"""


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_core_process_is_tied_and_runs_what_it_would(method: str, tmp_path: Path) -> None:
    folder = tmp_path / "vllm" / "v1" / "engine"
    folder.mkdir(parents=True)
    (folder / "core.py").write_text(CORE)
    (tmp_path / "starter.py").write_text(STARTER)
    output = subprocess.run(
        [sys.executable, str(tmp_path / "starter.py"), method],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert output == "(1,) {'dp_rank': 0} 9\n"


ACTOR = """
import sys, threading, types
from leonardo.hooks.engine import end_with_engine
engine = types.SimpleNamespace(errored=False)
end_with_engine(engine, look=0.01, grace=0.05)
if sys.argv[1] == "dies":
    engine.errored = True
threading.Event().wait(None if sys.argv[1] == "dies" else 0.5)  # for an answer of the engine
print("answered")
"""


@pytest.mark.parametrize(("engine", "code", "said"), [("dies", 1, ""), ("lives", 0, "answered\n")])
def test_an_actor_ends_with_its_engine_even_where_it_waits_for_it(engine: str, code: int, said: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ACTOR, engine], capture_output=True, text=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stdout) == (code, said)
    assert ("engine is dead" in ended.stderr) == (engine == "dies")
