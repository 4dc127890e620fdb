"""Patch 0005 in upstream's own rollout actor: weight updates on a vLLM that wants them framed, and on one that does
not know frames."""

import asyncio
from collections.abc import Coroutine
from typing import Any
from unittest import mock

import pytest

from leonardo.overlay.tree import Tree
from tests.upstream.parts import run_parts

MODULE = "training/open-instruct/open_instruct/vllm_utils.py"


class Older:
    """vLLM's engine before 0.21: what it was told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []

    async def pause_generation(self, **options: Any) -> None:
        self.told.append("pause")

    async def resume_generation(self) -> None:
        self.told.append("resume")

    async def update_weights(self, request: Any) -> None:
        self.told.append("update")


class Newer(Older):
    """From 0.21 on: no update outside of a frame, and no frame left open."""

    async def start_weight_update(self, is_checkpoint_format: bool) -> None:
        assert is_checkpoint_format
        self.told.append("start")

    async def update_weights(self, request: Any) -> None:
        if "start" not in self.told:
            raise RuntimeError("start_weight_update must be called before update_weights.")
        await super().update_weights(request)

    async def finish_weight_update(self) -> None:
        self.told.append("finish")


def synchronise(source: str, engine: Older, updates: int) -> list[str]:
    """A synchronisation as upstream's trainer does one, its weights in so many ``updates``."""
    names = (
        "ray",
        "RewardConfig",
        "NCCLWeightTransferEngine",
        "WeightTransferUpdateRequest",
        "DEFAULT_TOOL_CALL_TIMEOUT_S",
    )
    space = {name: mock.MagicMock() for name in names}
    actor_class = run_parts(source, {"LLMRayActor"}, space, MODULE)["LLMRayActor"]

    class Actor(actor_class):
        def __init__(self) -> None:
            self.llm_engine = engine
            self.inflight_updates, self.inflight_updates_recompute_kv_cache = True, False
            self._generation_paused = False

        def _run_async(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
            return asyncio.run(coroutine)

    actor = Actor()
    actor.sleep()
    for _ in range(updates):
        actor.update_weights(["name"], ["bfloat16"], [[1]])
    actor.wake_up()
    actor.wake_up()  # upstream may wake an actor that is awake
    return engine.told


def test_newer_engine(upstream: Tree, commit: tuple[str, str]) -> None:
    source = upstream.git("show", f"{commit[1]}:{MODULE}")
    if commit[0] == "unpatched":
        with pytest.raises(RuntimeError, match="start_weight_update must be called"):
            synchronise(source, Newer(), 1)
        return
    assert synchronise(source, Newer(), 2) == ["pause", "start", "update", "update", "finish", "resume"]


def test_older_engine(upstream: Tree, commit: tuple[str, str]) -> None:
    source = upstream.git("show", f"{commit[1]}:{MODULE}")
    assert synchronise(source, Older(), 1) == ["pause", "update", "resume"]
