"""Patch 0006 in upstream's own functions: without an accelerator they do something else, with one the same."""

import contextlib
import dataclasses
import inspect
import threading
import unittest.mock as mock
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import pytest

from leonardo.hooks import cpu
from leonardo.overlay.tree import Tree
from tests.upstream.parts import run_parts

PACKAGE = "training/open-instruct/open_instruct"


@pytest.fixture(params=[True, False], ids=["cpu", "gpu"])
def bare(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the machine has no accelerator."""
    monkeypatch.setattr(cpu, "without_accelerator", lambda: request.param)
    monkeypatch.setattr(cpu, "has_linear_kernels", lambda: not request.param)
    return request.param


@dataclass
class Sampling:
    """Stands for upstream's settings of a request."""

    n: int
    seed: int


def source_of(upstream: Tree, commit: tuple[str, str], module: str) -> str:
    return upstream.git("show", f"{commit[1]}:{PACKAGE}/{module}.py")


@pytest.mark.parametrize("prepared", ["pack_sequences", "config"])
def test_a_pack_for_each_sequence(upstream: Tree, commit: tuple[str, str], bare: bool, prepared: str) -> None:
    """The data preparation asks for such packs, and upstream's packing gives them."""
    torch = pytest.importorskip("torch", reason="torch is not installed (the extra desk)")
    is_single = bare and commit[0] == "patched"
    if prepared == "config":
        assert pack_length_of_data_preparation(source_of(upstream, commit, "data_loader")) == (1 if is_single else 100)
        return
    space = {"torch": torch, "np": mock.MagicMock(), "contextlib": contextlib, "dataclass": dataclass}
    space |= {"Generic": Generic, "T": TypeVar("T"), "field": field}
    names = {"pack_sequences", "reset_position_ids", "PackedSequences"}
    packed = run_parts(source_of(upstream, commit, "rl_utils"), names, space, "rl_utils")["pack_sequences"](
        queries=[[1, 2], [3]],
        responses=[[4], [5, 6]],
        masks=[[1], [1, 1]],
        pack_length=1 if bare else 100,
        pad_token_id=0,
        vllm_logprobs=[[-1.0], [-1.0, -1.0]],
    )
    expected = [[1, 2, 4], [3, 5, 6]] if bare else [[1, 2, 4, 3, 5, 6]]
    assert [sequence.tolist() for sequence in packed.query_responses] == expected


def pack_length_of_data_preparation(source: str) -> int:
    """What upstream's actor goes by, of settings that say 100."""
    names = ("ray", "np", "HFDataLoader", "load_dataset", "single_example_collator", "logger", "RubricManager")
    space: dict[str, Any] = {name: mock.MagicMock() for name in names} | {"threading": threading}
    space["ray"].remote = lambda *classes, **options: classes[0] if classes else lambda decorated: decorated
    actor_class = run_parts(source, {"DataPreparationActor"}, space, "data_loader")["DataPreparationActor"]
    parameters = inspect.signature(actor_class.__init__).parameters
    given = {name: mock.MagicMock() for name in parameters if name not in ("self", "initial_state")}
    config = SimpleNamespace(pack_length=100, apply_evolving_rubric_reward=False)
    return actor_class(**given | {"config": config}).config.pack_length


def test_no_figures_of_an_accelerator_that_is_not_there(upstream: Tree, commit: tuple[str, str]) -> None:
    function = run_parts(source_of(upstream, commit, "utils"), {"calculate_utilization_metrics"}, {}, "utils")[
        "calculate_utilization_metrics"
    ]
    arguments = ([1], [1], 1.0, 1, 1, 1, 1.0, 1)
    dims = mock.MagicMock(device_name="a100")
    dims.calculate_actor_utilization.return_value = {"mfu": 1.0}
    dims.calculate_learner_utilization.return_value = {"mfu": 2.0}
    assert function(dims, *arguments) == {"actor_mfu": 1.0, "learner_mfu": 2.0}
    none = mock.MagicMock(device_name=None)
    none.calculate_actor_utilization.side_effect = AssertionError("device_name must be set")
    if commit[0] == "unpatched":
        with pytest.raises(AssertionError):
            function(none, *arguments)
    else:
        assert function(none, *arguments) == {}


def test_concurrency_of_an_engine(
    upstream: Tree, commit: tuple[str, str], bare: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    space: dict[str, Any] = {
        name: mock.MagicMock() for name in ("ray", "RewardConfig", "NCCLWeightTransferEngine", "torch")
    }
    space |= {"kv_cache_utils": mock.MagicMock(), "DEFAULT_TOOL_CALL_TIMEOUT_S": 1.0}
    space["kv_cache_utils"].get_max_concurrency_for_kv_cache_config.return_value = 3.5
    space["torch"].cuda.get_device_properties.return_value.total_memory = 100
    source = source_of(upstream, commit, "vllm_utils")
    actor_class = run_parts(source, {"LLMRayActor"}, space, "vllm_utils")["LLMRayActor"]
    monkeypatch.setitem(actor_class.get_kv_cache_info.__globals__, "without_accelerator", lambda: bare)
    engine = mock.MagicMock()
    engine.vllm_config.scheduler_config.max_num_seqs = 128
    engine.vllm_config.cache_config.gpu_memory_utilization = 0.5
    actor = SimpleNamespace(llm_engine=engine, _run_async=lambda value: [mock.MagicMock()])
    expected = 128 if bare and commit[0] == "patched" else 3
    assert actor_class.get_kv_cache_info(actor) == expected


def test_requests_without_a_seed_on_the_cpu(
    upstream: Tree, commit: tuple[str, str], bare: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM rewinds the generator of a seeded request whose prompt is read in parts, which one of the CPU cannot."""
    seeds = []
    names = ("asyncio", "NCCLWeightTransferEngine", "time", "futures")
    space: dict[str, Any] = {name: mock.MagicMock() for name in names} | {"dataclasses": dataclasses}
    space["make_request_id"] = lambda request: "r"
    space["process_request"] = lambda actor, request_id, sampling: seeds.append(sampling.seed)
    parts = run_parts(source_of(upstream, commit, "vllm_utils"), {"add_request"}, space, "vllm_utils")
    monkeypatch.setitem(parts, "without_accelerator", lambda: bare)
    parts["add_request"](mock.MagicMock(), mock.MagicMock(generation_config=Sampling(n=2, seed=7)))
    assert seeds == ([None, None] if bare and commit[0] == "patched" else [7, 8])


def test_device_and_process_group_of_the_learner(upstream: Tree, commit: tuple[str, str]) -> None:
    """What the module's ``torch`` is, and what comes before upstream joins over NCCL."""
    source = source_of(upstream, commit, "grpo_fast")
    torch = pytest.importorskip("torch", reason="torch is not installed (the extra desk)")
    space = {name: mock.MagicMock() for name in ("datasets", "snapshot_download")} | {"torch": torch}
    parts = run_parts(source, set(), space, "grpo_fast")
    if commit[0] == "unpatched":
        assert parts["torch"] is torch
        return
    assert (parts["torch"] is torch) == torch.cuda.is_available()
    joins = source.index("        join_process_group(args.backend_timeout)\n")
    assert joins < source.index('init_process_group(backend="nccl"')
