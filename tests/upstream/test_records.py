"""Patches 0014 and 0015 in upstream's own functions: rollouts noted, a step watched, weights compared."""

import asyncio
import contextlib
import enum
import json
import math
import sys
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from leonardo.gates.steps import read_records
from leonardo.hooks import fingerprints, groups, rollout_records, step_records
from leonardo.overlay.tree import Tree
from tests.upstream.extracted import ROOT, define
from tests.upstream.test_failures import Remote, answer, rolled_out
from tests.upstream.test_groups import prepared, result

torch = pytest.importorskip("torch", reason="the extra desk is not installed")


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("LEONARDO_EXCLUDE_INFRASTRUCTURE", raising=False)
    monkeypatch.setenv("LEONARDO_RUN", str(tmp_path))
    rollout_records._steps().clear()
    groups._in_a_row().clear()
    for each in (fingerprints.transfers, step_records._book):
        each.cache_clear()
    return tmp_path


def test_turns_and_weights_are_noted(upstream: Tree, commit: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = rolled_out(upstream, commit[1], monkeypatch, Remote(answer(), answer(1.0, True)))
    notes = state["info"].get("leonardo")
    assert notes == ({"turns": 2, "parsed": 2, "weights": [0, 0], "room": [50, 100]} if commit[0] == "patched" else None)


def test_updates_are_counted_by_the_rollout_actor(upstream: Tree, commit: tuple[str, str]) -> None:
    space = define(upstream.git("show", f"{commit[1]}:{ROOT}/vllm_utils.py"), ["sleep"], {})
    actor = SimpleNamespace(inflight_updates=True, _run_async=mock.MagicMock(), llm_engine=mock.MagicMock())
    actor.inflight_updates_recompute_kv_cache = False
    for _ in range(2):
        space["sleep"](actor)
    assert getattr(actor, "leonardo_updates", None) == (2 if commit[0] == "patched" else None)


def test_groups_go_with_the_batch(upstream: Tree, commit: tuple[str, str]) -> None:
    prepared(upstream, commit[1], result(1, (1, 1, 1, 1)), result(2, (1, 0, None, 0)), result(3, (1, None, None, None)))
    space = define(upstream.git("show", f"{commit[1]}:{ROOT}/data_loader.py"), ["get_data"], {"time": time})
    actor = mock.MagicMock(current_prepared_step=0, _last_consumed_step=-1, metrics={0: {"scores": 1.0}})
    actor._prep_future.done.return_value = False
    fetched = space["get_data"](actor, 0, 0)["metrics"]
    if commit[0] == "unpatched":
        assert fetched == {"scores": 1.0}
        return
    noted = fetched[rollout_records.GROUPS]
    assert [group["rewards"] for group in noted] == [[1, 1, 1, 1], [1, 0, None, 0], [1, None, None, None]]
    assert [group["kept"] for group in noted] == [False, True, False]


class Engine:
    """DeepSpeed's engine as far as upstream uses it, around SGD."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.module = torch.nn.Embedding(8, 8)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.5)
        self.norm = 0.0

    def set_gradient_accumulation_boundary(self, boundary: bool) -> None: ...

    def backward(self, loss: Any) -> None:
        loss.backward()

    def step(self) -> None:
        self.norm = float(self.module.weight.grad.norm())
        self.optimizer.step()
        self.optimizer.zero_grad()

    def get_global_grad_norm(self) -> float:
        return self.norm

    def logprobs(self, tokens: Any) -> Any:
        logits = self.module(tokens[:, :-1]).log_softmax(-1)
        return logits.gather(-1, tokens[:, 1:].unsqueeze(-1)).squeeze(-1)


class Metrics(dict):  # type: ignore[type-arg]
    """Upstream's metrics of a rank."""

    def get_metrics_list(self) -> dict[str, float]:
        return dict(self)


def stepped(upstream: Tree, commit: str, batch: dict[str, Any], engine: Engine) -> tuple[Any, Any]:
    """What upstream's step of a rank returns: DPPO on one sequence of five tokens."""
    utilities: dict[str, Any] = {"torch": torch, "math": math, "INVALID_LOGPROB": 1.0, "enum": enum}
    source = upstream.git("show", f"{commit}:{ROOT}/grpo_utils.py")
    names = (
        "GRPOLossType DPPODivergenceType mask_logprobs resolve_old_logprob compute_tis_weights compute_tis_mask "
        "combine_tis_terms compute_sequence_tis_mask compute_binary_divergence compute_dppo_mask compute_grpo_loss "
        "create_loss_stats"
    )
    define(source, names.split(), utilities)
    utilities["_SCALAR_LOSS_STAT_KEYS"] = []
    utilities["populate_sample_loss_stats"] = mock.MagicMock()
    utilities["forward_for_logprobs"] = lambda model, tokens, *arguments, **options: (model.logprobs(tokens), None)
    space: dict[str, Any] = {
        "torch": torch, "math": math, "np": np, "dist": mock.MagicMock(), "grpo_utils": SimpleNamespace(**utilities),
        "Timer": lambda *arguments, **options: contextlib.nullcontext(),
    }  # fmt: skip
    define(upstream.git("show", f"{commit}:{ROOT}/rl_utils.py"), ["masked_mean"], space)
    define(upstream.git("show", f"{commit}:{ROOT}/grpo_fast.py"), ["step", "calculate_token_counts"], space)
    args = mock.MagicMock(
        num_epochs=1, loss_fn="dppo", loss_denominator="token", use_vllm_logprobs=True, world_size=1, load_ref_policy=0,
        sequence_parallel_size=1, dppo_divergence_type="tv", dppo_divergence_threshold=0.1, use_value_model=0,
        use_liger_grpo_loss=0, record_entropy=0, tis_mask_lower=0, tis_mask_upper=0, beta=0,
        sequence_tis_mask_log_ratio_threshold=0, truncated_importance_sampling_ratio_cap=0,
    )  # fmt: skip
    trainer = SimpleNamespace(
        dataloader=iter([batch]), splitter=None, device=torch.device("cpu"), num_mini_batches=1, args=args, rank=0,
        streaming_config=SimpleNamespace(save_traces=False, temperature=1.0), model=engine, pad_token_id=0,
        local_metrics=Metrics(), dp_world_size=1, _sp_group=None, _sp_rank=0,
        _build_cp_contexts_for_batch=lambda data: [None] * len(data.query_responses),
        _record_vllm_local_logprob_debug=mock.MagicMock(), _compute_loss_metrics=mock.MagicMock(),
    )  # fmt: skip
    trainer.calculate_token_counts = lambda *arguments: space["calculate_token_counts"](trainer, *arguments)
    return space["step"](trainer, 1)


class Data(SimpleNamespace):
    """Upstream's collated batch."""

    def __len__(self) -> int:
        return len(self.query_responses)

    def to(self, device: Any) -> "Data":
        return self


def data(engine: Engine) -> Data:
    """A prompt of two tokens, a response of three, sampled with the engine's own weights; advantage 1."""
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    chosen = torch.tensor([[0, 0, 1, 1, 1]])
    with torch.no_grad():
        sampled = torch.cat([torch.full((1, 1), math.nan), engine.logprobs(tokens)], 1)
    return Data(
        query_responses=[tokens], response_masks=[chosen], advantages=[chosen.float()], vllm_logprobs=[sampled],
        position_ids=[torch.arange(5)[None]], rollout_sample_ids=[torch.zeros(1, 5).long()],
    )  # fmt: skip


def metrics_of(*kept: dict[str, Any]) -> dict[str, Any]:
    return {"time/trainer_idle_waiting_for_inference": 0.5, rollout_records.GROUPS: list(kept)}


GROUP = {
    "task_id": "t", "family": "", "rewards": [1.0, 0.0], "failures": [], "prompt_tokens": 2, "response_tokens": [2, 1],
    "turns": 1, "parsed": 1, "weights": [0, 0], "cut_off": [False, False], "seconds": 1.0, "sandbox": {}, "kept": True,
}  # fmt: skip


def test_step_is_watched(upstream: Tree, commit: tuple[str, str], run: Path) -> None:
    engine = Engine()
    before = engine.module.weight.detach().clone()
    scalars, arrays = stepped(upstream, commit[1], {"batch": data(engine), "metrics": metrics_of(GROUP)}, engine)
    change = engine.module.weight.detach() - before
    assert scalars["optim/grad_norm"] == engine.norm > 0
    if commit[0] == "unpatched":
        assert "leonardo" not in arrays
        return
    record = step_records.fields(1, [arrays["leonardo"]], 1.0)
    assert record["gradient_norm"] == engine.norm and record["learning_rate"] == 0.5
    assert record["update_norm"] == pytest.approx(float(change.norm()))
    assert record["parameters_moved_share"] == pytest.approx(float((change != 0).double().mean()))
    assert record["loss"] == pytest.approx(-1.0)  # ratio 1, advantage 1
    assert record["first_pass_ratio_max_deviation"] == pytest.approx(0.0, abs=1e-6)
    assert record["logprob_difference_mean"] == pytest.approx(0.0, abs=1e-6)
    assert (record["mask_fraction"], record["finite"]) == (0.0, True)
    assert rollout_records.GROUPS not in arrays


def test_step_without_data_has_a_record_too(upstream: Tree, commit: tuple[str, str]) -> None:
    empty = Data(query_responses=[])
    group = GROUP | {"rewards": [1.0, 1.0], "kept": False}
    returned = stepped(upstream, commit[1], {"batch": empty, "metrics": metrics_of(group)}, Engine())
    if commit[0] == "unpatched":
        assert returned == ([], {})
        return
    assert returned[0] == []  # by which upstream knows that nothing was trained
    record = step_records.fields(1, [returned[1]["leonardo"]], 1.0)
    assert (record["zero_variance_groups"], record["loss"], record["times"]["rollout"]) == (1, None, 0.5)


class Actors:
    """Handles of actors of which every method is called at once."""

    def __init__(self, **methods: Any) -> None:
        for name, method in methods.items():
            setattr(self, name, SimpleNamespace(remote=method))


def test_record_of_a_step_with_its_synchronisation(
    upstream: Tree, commit: tuple[str, str], run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the ranks' evidence in the main loop to the line that the synchronising thread writes."""
    engine = Engine()
    source = upstream.git("show", f"{commit[1]}:{ROOT}/grpo_fast.py")
    returned = stepped(upstream, commit[1], {"batch": data(engine), "metrics": metrics_of(GROUP)}, engine)
    sending = define(
        upstream.git("show", f"{commit[1]}:{ROOT}/vllm_utils.py"), ["broadcast_weights_to_vllm"],
        {"torch": torch, "FSDP": str, "FSDPModule": str, "_collect_weight_metadata": lambda *a, **o: ([], [], [])},
    )  # fmt: skip
    held = fingerprints.worker_weights(engine.module)
    handle = Actors(
        sleep=lambda: None, wake_up=lambda: None, set_model_step=lambda step: None,
        update_weights=lambda *a, **o: "ref", leonardo_held_weights=lambda: [held],
    )  # fmt: skip

    def send() -> Any:
        refs = sending["broadcast_weights_to_vllm"](model=engine.module, vllm_engines=[handle], model_update_group=1)
        return refs, 0.25

    stop = threading.Event()
    trigger = mock.MagicMock()
    trigger.get_step_and_clear.return_value = 1
    trigger.wait.side_effect = lambda timeout: not stop.is_set()
    queue = mock.MagicMock()
    queue.put_nowait.side_effect = lambda value: stop.set()
    timer = mock.MagicMock()
    timer.return_value.__enter__.return_value.duration = 0.75
    ray = SimpleNamespace(get=lambda value, timeout=None: value)
    module = ModuleType("ray")
    vars(module).update(vars(ray))
    monkeypatch.setitem(sys.modules, "ray", module)

    def gathered(values: list[Any], *arguments: Any, **options: Any) -> Any:
        pairs = bool(values) and isinstance(values[0], tuple)
        return tuple(zip(*values, strict=True)) if pairs else values

    space: dict[str, Any] = {"np": np, "time": time, "Timer": timer, "ray": ray, "ray_get_with_progress": gathered}
    define(source, ["one_training_step", "weight_sync_thread"], space)
    space["ray_get_with_progress"] = lambda *arguments, **options: ([returned], None)
    space["compute_token_weights"] = mock.MagicMock(side_effect=RuntimeError("enough of upstream's loop"))
    with pytest.raises(RuntimeError, match="enough"):
        space["one_training_step"](*[mock.MagicMock()] * 5, 0, 1, 0, time.perf_counter(), *[mock.MagicMock()] * 6)
    space["ray_get_with_progress"] = gathered
    models = SimpleNamespace(models=[Actors(broadcast_to_vllm=send)])
    actors = Actors(set_should_stop=lambda value: None)
    space["weight_sync_thread"](mock.MagicMock(), stop, trigger, models, [handle], actors, queue)
    records = read_records(run / "steps.jsonl")
    if commit[0] == "unpatched":
        assert records == []
        return
    assert [(each.step, each.weights_agree, each.times["hand_over"]) for each in records] == [(1, True, 0.75)]
    assert json.loads((run / "weights.jsonl").read_text())["digest"] == records[0].weights_digest
    assert "leonardo" not in returned[1]


def test_rollout_actor_answers_for_its_engine(upstream: Tree, commit: tuple[str, str]) -> None:
    source = upstream.git("show", f"{commit[1]}:{ROOT}/vllm_utils.py")
    if commit[0] == "unpatched":
        assert "leonardo_held_weights" not in source
        return
    space = define(source, ["leonardo_held_weights"], {})

    async def answered(method: str) -> list[Any]:
        return [[("a.weight", "1f")]] if method == "leonardo_weights" else []

    actor = SimpleNamespace(_run_async=asyncio.run, llm_engine=SimpleNamespace(collective_rpc=answered))
    assert space["leonardo_held_weights"](actor) == [[("a.weight", "1f")]]
