"""Patch 0004 in upstream's own functions: the engines are created with our extension of vLLM's worker, and tied."""

from typing import Any
from unittest import mock

import pytest

from leonardo.hooks.engine import PROCESS_EXTENSION
from leonardo.overlay.tree import Tree
from tests.upstream.parts import run_parts

MODULE = "training/open-instruct/open_instruct/vllm_utils.py"
ARGUMENTS = ("num_engines", "tensor_parallel_size", "enforce_eager", "tokenizer_name_or_path", "pretrain", "revision")


def test_engines_load_the_hooks(upstream: Tree, commit: tuple[str, str]) -> None:
    created: list[dict[str, Any]] = []
    ray = mock.MagicMock()
    ray.remote.return_value.options.return_value.remote = lambda **options: created.append(options) or mock.MagicMock()
    names = ("ray", "placement_group", "PlacementGroupSchedulingStrategy", "WeightTransferConfig", "LLMRayActor")
    space: dict[str, Any] = {name: mock.MagicMock() for name in (*names, "utils", "logger", "NCCLWeightTransferEngine")}
    space |= {"ray": ray, "get_bundle_indices_list": lambda group: [0, 1], "get_cuda_arch_list": lambda: ""}
    space["ray_noset_visible_devices"] = lambda: False
    source = upstream.git("show", f"{commit[1]}:{MODULE}")
    create = run_parts(source, {"create_vllm_engines"}, space, MODULE)["create_vllm_engines"]
    create(
        *(2 if name == "num_engines" else 1 for name in ARGUMENTS), seed=1, enable_prefix_caching=False, max_model_len=1
    )
    expected = PROCESS_EXTENSION if commit[0] == "patched" else None
    assert [options.get("worker_extension_cls") for options in created] == [expected, expected]


def test_engine_is_tied_before_it_starts(
    upstream: Tree, commit: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    monkeypatch.setattr("leonardo.hooks.engine.tie_engine", lambda: order.append("tied"))
    names = (
        "ray",
        "RewardConfig",
        "NCCLWeightTransferEngine",
        "asyncio",
        "os",
        "logger",
        "DEFAULT_TOOL_CALL_TIMEOUT_S",
    )
    space: dict[str, Any] = {name: mock.MagicMock() for name in (*names, "vllm", "threading")}
    space["vllm"].AsyncEngineArgs.side_effect = lambda *arguments, **options: (
        order.append("arguments") or mock.MagicMock()
    )
    space["INFERENCE_INIT_TIMEOUT_S"] = 1
    source = upstream.git("show", f"{commit[1]}:{MODULE}")
    actor = run_parts(source, {"LLMRayActor"}, space, MODULE)["LLMRayActor"]
    with pytest.raises(RuntimeError, match="initialization failed"):  # no thread has made it
        actor._setup_and_start_async_engine(mock.MagicMock(), (), None, {"num_gpus": 1})
    assert order == (["tied", "arguments"] if commit[0] == "patched" else ["arguments"])
