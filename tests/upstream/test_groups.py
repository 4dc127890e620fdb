"""Patch 0011 in upstream's own data preparation: what is trained on, with which advantages, when rollouts are lost."""

import math
import threading
from collections import defaultdict
from queue import Queue
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from leonardo.errors import InfrastructureError
from leonardo.hooks import groups
from leonardo.overlay.tree import Tree
from tests.upstream.extracted import ROOT, define

LOST = {"done": True, "info": {"leonardo": {"failure": {"class": "runtime", "place": "step", "reason": "gone"}}}}
SIZE = 4


@pytest.fixture(autouse=True)
def switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEONARDO_EXCLUDE_INFRASTRUCTURE", "1")
    groups._in_a_row().clear()


def result(index: int, rewards: tuple[float | None, ...]) -> Any:
    """Upstream's result of prompt ``index``: response n of it is the token 10 * index + n; a lost one has score 0."""
    size = len(rewards)
    states = [{"done": True, "info": {}} if reward is not None else LOST for reward in rewards]
    columns = ("num_calls", "timeouts", "tool_errors", "tool_outputs", "tool_runtimes", "tool_calleds")
    return SimpleNamespace(
        index=index,
        prompt_id=f"0_{index}",
        responses=[[10 * index + n] for n in range(size)],
        masks=[[1]] * size,
        logprobs=[[-1.0]] * size,
        finish_reasons=["stop"] * size,
        reward_scores=[reward or 0.0 for reward in rewards],
        reward_metrics={},
        model_step=None,
        model_steps=None,
        start_time=0.0,
        request_info=SimpleNamespace(
            **{name: [0] * size for name in columns}, tool_call_stats=[[]] * size, rollout_states=states
        ),
        token_statistics=SimpleNamespace(num_prompt_tokens=1, num_response_tokens=size, generation_time=1.0),
    )


def prepared(upstream: Tree, commit: str, *results: Any, **settings: Any) -> tuple[dict[int, float], dict[str, Any]]:
    """What a step of upstream's data preparation makes of ``results``.

    Returns:
        The advantage of every response that is packed, and upstream's metrics of the step.
    """
    packed: list[int] = []

    def pack(responses: list[list[int]], **_: Any) -> Any:
        packed.extend(response[0] for response in responses)
        return SimpleNamespace(response_masks=[], query_responses=[1])

    types = ("TokenStatistics", "RequestInfo", "GenerationResult", "CollatedBatchData")
    space: dict[str, Any] = {
        "np": np,
        "math": math,
        "pack_sequences": pack,
        "data_types": SimpleNamespace(ShutdownSentinel=str, **dict.fromkeys(types, SimpleNamespace)),
        "repeat_each": lambda values, count: [value for value in values for _ in range(count)],
        "combine_reward_metrics": lambda metrics: {},
        "asdict": vars,
    }
    define(upstream.git("show", f"{commit}:{ROOT}/model_utils.py"), ["Batch"], space)
    names = ["accumulate_inference_batches", "compute_group_advantages", "BatchStatistics", "_data_preparation_loop"]
    define(upstream.git("show", f"{commit}:{ROOT}/data_loader.py"), names, space)
    space["_compute_avg_group_performance"] = lambda **_: 0.0
    config = SimpleNamespace(
        async_steps=1, active_sampling=False, filter_zero_std_samples=True, no_resampling_pass_rate=None,
        max_possible_score=1.0, add_concave_length_penalty=False, num_samples_per_prompt_rollout=SIZE,
        advantage_normalization_type="centered", save_traces=False, save_filtered_rollouts=False, rollouts_save_path="",
        mask_truncated_completions=False, mask_non_submitting_completions=False, response_length=100,
        mask_non_submitting_completions_percent=0.0, pack_length=100, mask_tool_use=True, use_value_model=False,
    )  # fmt: skip
    vars(config).update(settings)
    queue: Queue[Any] = Queue()
    for each in results:
        queue.put(each)
    actor = SimpleNamespace(
        config=config, training_step=0, num_training_steps=1, global_batch_size=len(results), _last_consumed_step=-1,
        inference_results_Q=queue, generation_config=SimpleNamespace(n=SIZE), rubric_manager=None,
        lock=threading.Lock(), dataset=_Rows(), seed=0, dp_world_size=1, per_device_train_batch_size=1,
        prepared_data={}, metrics={}, iter_dataloader=_Endless(), param_prompt_Q=Queue(), ground_truth_overrides={},
        image_prewarm_actors=[], model_dims=None, actor_manager=None, base_env_config=None, run_name="r",
        verbose=False, tool_names=[],
        tokenizer=SimpleNamespace(pad_token_id=0, eos_token_id=1, batch_decode=lambda tokens, **_: [""] * len(tokens)),
        total_samples_written=0, metadata_saved=True,
    )  # fmt: skip
    space["_data_preparation_loop"](actor)
    metrics = actor.metrics[0]
    return dict(zip(packed, map(float, metrics.get("val/advantages_hist", [])), strict=True)), metrics


class _Rows:
    """The data set: every row is the same, a token in every column."""

    def __getitem__(self, index: int) -> Any:
        return defaultdict(lambda: [5])


class _Endless:
    """The order of rows."""

    _epoch = 0

    def __next__(self) -> dict[str, Any]:
        return {"index": 0}


def test_lost_rollout_is_not_trained_on(upstream: Tree, commit: tuple[str, str]) -> None:
    trained, metrics = prepared(upstream, commit[1], result(1, (1, 0, 0, None)), result(2, (1, 0, 1, 0)))
    whole = {20: 0.5, 21: -0.5, 22: 0.5, 23: -0.5}
    if commit[0] == "unpatched":  # its 0 pulls the others' baseline down, and it is pushed away from
        assert trained == {10: 0.75, 11: -0.25, 12: -0.25, 13: -0.25} | whole
        return
    assert trained == pytest.approx({10: 2 / 3, 11: -1 / 3, 12: -1 / 3} | whole)
    assert metrics["scores"] == pytest.approx(3 / 7)


def test_failures_make_no_signal(upstream: Tree, commit: tuple[str, str]) -> None:
    trained, metrics = prepared(upstream, commit[1], result(1, (1, 1, 1, None)), result(2, (1, 0, 1, 0)))
    if commit[0] == "unpatched":
        assert trained[13] == -0.75
        return
    assert sorted(trained) == [20, 21, 22, 23]
    assert metrics["batch/filtered_prompts"] == 1


def test_group_too_small_is_dropped_not_zero_filled(upstream: Tree, commit: tuple[str, str]) -> None:
    trained, metrics = prepared(upstream, commit[1], result(1, (1, None, None, None)), result(2, (1, 0, 1, 0)))
    if commit[0] == "unpatched":
        assert trained[10] == 0.75
        return
    assert sorted(trained) == [20, 21, 22, 23]
    assert metrics["batch/filtered_prompts"] == 0


@pytest.mark.parametrize("commit", ["patched"], indirect=True)
def test_step_without_any_group_left_is_empty(upstream: Tree, commit: tuple[str, str]) -> None:
    assert prepared(upstream, commit[1], result(1, (None,) * SIZE), result(2, (1, None, None, None)))[0] == {}


def test_broken_machine_ends_the_run(upstream: Tree, commit: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEONARDO_LOST_GROUPS", "2")
    lost = [result(number, (None,) * SIZE) for number in range(2)]
    if commit[0] == "unpatched":
        assert prepared(upstream, commit[1], *lost)[0] == {}
        return
    with pytest.raises(InfrastructureError, match="runtime 8"):
        prepared(upstream, commit[1], *lost)


@pytest.mark.parametrize("kind", ["standard", "centered", "maxrl"])
def test_batch_without_failures_is_upstreams(upstream: Tree, commit: tuple[str, str], kind: str) -> None:
    results = [result(1, (1, 0, 0, 0)), result(2, (1, 1, 1, 1)), result(3, (0.5, 0, 1, 0))]
    trained, _ = prepared(upstream, commit[1], *results, advantage_normalization_type=kind)
    scores = np.array([1, 0, 0, 0, 0.5, 0, 1, 0], dtype=float).reshape(2, SIZE)
    mean = scores.mean(-1, keepdims=True)
    scale = {"standard": scores.std(-1, keepdims=True) + 1e-8, "centered": 1.0, "maxrl": mean}[kind]
    expected = ((scores - mean) / scale).reshape(-1)
    assert list(trained.values()) == pytest.approx(list(expected))
