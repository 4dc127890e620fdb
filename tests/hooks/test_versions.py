"""Libraries newer than upstream's lock, and the older ones as well."""

import asyncio
import subprocess
import sys
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from leonardo.hooks.versions import begin_weight_update, end_weight_update


class Engine:
    """vLLM 0.21's engine, as far as weights go."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []

    async def start_weight_update(self, **options: Any) -> None:
        self.calls.append(("start", options))

    async def finish_weight_update(self, **options: Any) -> None:
        self.calls.append(("finish", options))


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


def test_update_is_framed() -> None:
    actor = SimpleNamespace(llm_engine=Engine(), _run_async=run)
    end_weight_update(actor)
    begin_weight_update(actor)
    end_weight_update(actor)
    end_weight_update(actor)  # whoever needs the weights first ends it
    assert actor.llm_engine.calls == [("start", {"is_checkpoint_format": True}), ("finish", {})]


def test_engine_without_frames_is_left_alone() -> None:
    actor = SimpleNamespace(llm_engine=object(), _run_async=run)
    begin_weight_update(actor)
    end_weight_update(actor)


PICKLE = """
import pickle, torch.utils._config_module, torch._dynamo.config as config
from leonardo.hooks.versions import pickle_config_modules
try:
    pickle.dumps(config)
except TypeError as error:
    print(error)
pickle_config_modules()
print(pickle.loads(pickle.dumps(config)) is config)
"""


def test_configuration_modules_are_pickled_by_name() -> None:
    pytest.importorskip("torch", reason="torch is not installed (the extra desk)")
    output = subprocess.run([sys.executable, "-c", PICKLE], capture_output=True, text=True, check=True).stdout
    before, after = output.splitlines()
    assert before.startswith("cannot pickle") and after == "True"
