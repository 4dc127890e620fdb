"""Fingerprints agree where the weights do, however they are kept, and differ where one scalar does."""

import copy
import json
import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra desk is not installed")

from leonardo.hooks import fingerprints, step_records  # noqa: E402
from leonardo.hooks.fingerprints import compare, fingerprint, learner_weights, worker_weights  # noqa: E402


def matrix(rows: int, columns: int, seed: int = 0) -> Any:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).bfloat16()


def test_order_shape_padding_and_format_do_not_matter() -> None:
    weights = matrix(48, 7)
    same = fingerprint(weights)
    assert fingerprint(weights.float()) == fingerprint(weights.t()) == fingerprint(weights.reshape(7, -1)) == same
    assert fingerprint(torch.cat([weights.flip(0), torch.zeros(5, 7).bfloat16()])) == same
    assert fingerprint(torch.where(weights > 0, weights, -0.0)) == fingerprint(weights.clamp_min(0))
    parts = sum(fingerprint(part) for part in weights.split(16)) % (1 << 64)
    assert parts == same


def test_many_chunks_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = matrix(33, 9)
    whole = fingerprint(weights)
    monkeypatch.setattr(fingerprints, "_CHUNK", 10)
    assert fingerprint(weights) == whole


@pytest.mark.parametrize("change", ["one step of its format", "two that cancel", "sign"])
def test_one_scalar_is_seen(change: str) -> None:
    weights, other = matrix(64, 64), matrix(64, 64)
    if change == "sign":
        other[3, 3] = -other[3, 3]
    else:
        bits = other.view(torch.int16)
        bits[3, 3] += 1
        if change == "two that cancel":
            bits[5, 5] -= 1
    assert fingerprint(weights) != fingerprint(other)


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("model.layers.11.self_attn.q_proj.weight", "layers.11.self_attn"),
        ("language_model.model.layers.11.self_attn.qkv_proj.weight", "layers.11.self_attn"),
        ("model.layers.0.linear_attn.A_log", "layers.0.linear_attn"),
        ("model.layers.2.input_layernorm.weight", "layers.2.input_layernorm"),
        ("model.language_model.embed_tokens.weight", "embed_tokens"),
        ("lm_head.weight", "lm_head"),
        ("scale", "scale"),
    ],
)
def test_blocks_have_the_same_name_on_both_sides(name: str, block: str) -> None:
    assert fingerprints.block_of(name) == block


class Linear(torch.nn.Module):
    """A layer as vLLM has it on processors: the kernel has the weights, the parameter is empty or kept beside it."""

    def __init__(self, weights: Any, *, kept: bool = False) -> None:
        super().__init__()
        held = weights.clone()
        self.input_size = weights.shape[1]
        self.cpu_linear = lambda inputs, weight, bias: torch.nn.functional.linear(inputs, held)
        self.weight = torch.nn.Parameter(weights.clone() if kept else torch.empty(0), requires_grad=False)


def learner() -> Any:
    """Names as transformers has them."""
    layer = torch.nn.ModuleDict(
        {
            "self_attn": torch.nn.ModuleDict({name: plain(matrix(8, 8, at)) for at, name in enumerate("qkv")}),
            "mlp": torch.nn.ModuleDict({"up": plain(matrix(16, 8, 3)), "down": plain(matrix(8, 16, 4))}),
        }
    )
    model = torch.nn.ModuleDict({"embed_tokens": plain(matrix(20, 8, 5)), "layers": torch.nn.ModuleList([layer])})
    return torch.nn.ModuleDict({"model": model})


def plain(weights: Any) -> Any:
    layer = torch.nn.Linear(weights.shape[1], weights.shape[0], bias=False)
    layer.weight = torch.nn.Parameter(weights.clone())
    return layer


def engine(model: Any, *, kernels: bool) -> Any:
    """The same weights as vLLM has them: q, k and v in one matrix, the embedding padded."""
    layer = model["model"]["layers"][0]
    fused = torch.cat([layer["self_attn"][name].weight.detach() for name in "qkv"])
    padded = torch.cat([model["model"]["embed_tokens"].weight.detach(), torch.zeros(12, 8).bfloat16()])
    make = Linear if kernels else plain
    parts = {
        "self_attn": torch.nn.ModuleDict({"qkv_proj": make(fused)}),
        "mlp": torch.nn.ModuleDict({name: make(layer["mlp"][name].weight.detach()) for name in ("up", "down")}),
    }
    embedding = Linear(padded, kept=True) if kernels else plain(padded)
    inner = torch.nn.ModuleDict(
        {"embed_tokens": embedding, "layers": torch.nn.ModuleList([torch.nn.ModuleDict(parts)])}
    )
    return torch.nn.ModuleDict({"language_model": torch.nn.ModuleDict({"model": inner})})


@pytest.mark.parametrize("kernels", [False, True])
def test_engine_that_holds_the_weights_agrees(kernels: bool) -> None:
    model = learner()
    verdict = compare(learner_weights(model), [worker_weights(engine(model, kernels=kernels))])
    assert (verdict.agree, verdict.blocks, verdict.differ, verdict.unseen) == (True, 3, [], [])


@pytest.mark.parametrize("kernels", [False, True])
def test_block_that_stayed_old_is_named(kernels: bool) -> None:
    model = learner()
    old = engine(model, kernels=kernels)
    model["model"]["layers"][0]["mlp"]["up"].weight.data[0, 0] += 1
    verdict = compare(learner_weights(model), [worker_weights(old)])
    assert (verdict.agree, verdict.differ) == (False, ["layers.0.mlp"])


def test_copy_in_a_kernel_that_stayed_old_is_named() -> None:
    model = learner()
    held = engine(model, kernels=True)
    name = "language_model.model.embed_tokens.weight"
    held.get_parameter(name).data[0, 0] += 1  # as a weight loader does that does not tell the kernel
    model["model"]["embed_tokens"].weight.data[0, 0] += 1
    verdict = compare(learner_weights(model), [worker_weights(held)])
    assert (verdict.agree, verdict.differ) == (False, [f"{name} (as the kernel holds it)"])


def test_split_and_copied_over_workers() -> None:
    model = learner()
    whole = worker_weights(engine(model, kernels=False))
    first, second = copy.deepcopy(engine(model, kernels=False)), copy.deepcopy(engine(model, kernels=False))
    for number, part in enumerate((first, second)):
        linear = part["language_model"]["model"]["layers"][0]["mlp"]["up"]
        linear.weight = torch.nn.Parameter(linear.weight.detach().chunk(2)[number].clone())
    assert compare(learner_weights(model), [worker_weights(first), worker_weights(second)]).agree
    assert not compare(learner_weights(model), [worker_weights(first), whole]).agree


def test_block_that_cannot_be_seen_is_no_agreement() -> None:
    model = learner()
    held = [entry for entry in worker_weights(engine(model, kernels=False)) if "mlp" not in entry[0]]
    verdict = compare(learner_weights(model), [held])
    assert (verdict.agree, verdict.unseen) == (None, ["layers.0.mlp"])


class Engine:
    """A rollout actor's handle."""

    def __init__(self, held: Any) -> None:
        self.leonardo_held_weights = SimpleNamespace(remote=lambda: [worker_weights(held)])


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEONARDO_RUN", str(tmp_path))
    module = ModuleType("ray")
    module.get = lambda value, timeout: value  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", module)
    for each in (fingerprints.transfers, step_records._book):
        each.cache_clear()
    return tmp_path


def broadcast(model: Any, vllm_engines: Any, model_update_group: Any, name_mapper: Any = None) -> list[str]:
    return ["reference"]


def test_check_is_written_down(run: Path) -> None:
    model = learner()
    sent = fingerprints.fingerprinted(broadcast)(model, [], None)
    sent = pickle.loads(pickle.dumps(sent))  # Ray carries it to the main process
    assert list(sent) == ["reference"]  # upstream iterates it
    fingerprints.check_weights([[], sent], [Engine(engine(model, kernels=True))], 3)
    line = json.loads((run / "weights.jsonl").read_text())
    assert (line["synchronisation"], line["step"], line["agree"]) == (1, 3, True)
    assert (line["blocks"], line["engines"]) == (3, 1)
    assert step_records._book().verdict.digest == line["digest"]


def test_one_engine_of_two_that_differs_is_enough(run: Path) -> None:
    model, other = learner(), learner()
    other["model"]["embed_tokens"].weight.data[0, 0] += 1
    sent = fingerprints.fingerprinted(broadcast)(model, [], None)
    fingerprints.check_weights([sent], [Engine(engine(each, kernels=False)) for each in (model, other)], 1)
    assert json.loads((run / "weights.jsonl").read_text())["agree"] is False


@pytest.mark.parametrize(("every", "checked"), [("1", 5), ("2", 3), ("0", 0)])
def test_every_nth_is_checked(run: Path, monkeypatch: pytest.MonkeyPatch, every: str, checked: int) -> None:
    monkeypatch.setenv("LEONARDO_DIGEST_EVERY", every)
    model, send = learner(), fingerprints.fingerprinted(broadcast)
    for _ in range(5):
        fingerprints.transfers().changed = True
        fingerprints.check_weights([send(model, [], None)], [Engine(engine(model, kernels=False))], None)
        assert not fingerprints.transfers().changed
    assert fingerprints.transfers().count == 5
    file = run / "weights.jsonl"
    assert (len(file.read_text().splitlines()) if file.exists() else 0) == checked


def test_nothing_happens_without_a_run(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEONARDO_RUN")
    references = fingerprints.fingerprinted(broadcast)(None, [], None)
    assert type(references) is list and fingerprints.transfers().count == 0
    fingerprints.check_weights([references], [], 1)
    assert list(run.iterdir()) == []


def test_a_parameter_without_content_makes_its_block_unseen_and_not_different() -> None:
    model = torch.nn.Sequential()
    model.layers = torch.nn.ModuleList([torch.nn.ModuleDict({"mlp": torch.nn.Linear(4, 4)})])
    held = worker_weights(model)
    sent = learner_weights(model)
    assert compare(sent, [held]).agree is True
    model.layers[0]["mlp"].bias = torch.nn.Parameter(torch.empty(4, device="meta"))
    verdict = compare(sent, [worker_weights(model)])
    assert (verdict.agree, list(verdict.differ), list(verdict.unseen)) == (None, [], ["layers.0.mlp"])
