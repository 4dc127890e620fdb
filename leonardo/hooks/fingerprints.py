"""Whether the rollout engine holds the learner's weights after a synchronisation: fingerprints of both, block by block.

Names, fusing, order and number formats differ between the two, so that no digest of bytes can agree. A fingerprint is
here a sum over scalars of a mixing function of each one's float32 pattern: the same for q, k and v apart or in one
matrix, transposed, padded with zeros, split over ranks, in bfloat16 or float32. It is taken per block (a layer's
attention, its MLP, a norm, the embedding). It does not see two scalars of a block change places.

Kernels that keep a form of the weights of their own (vLLM's on processors) are read by multiplying with the identity.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leonardo.hooks.failures import RUN, number, recording
from leonardo.hooks.memory import peak
from leonardo.hooks.versions import end_weight_update

if TYPE_CHECKING:
    from torch import Tensor

EVERY = "LEONARDO_DIGEST_EVERY"
WEIGHTS_FILE = "weights.jsonl"

_CHUNK = 1 << 22
_WORD = 1 << 64
_ODD = 0x9E3779B97F4A7C15 - _WORD
"""A multiplier that mixes (2 ** 64 over the golden ratio), as a signed number."""
_PATIENCE = 600.0
_UNSEEN = ""
"""Stands for the fingerprint of a parameter that has a shape and no content (the meta device)."""
_KERNEL = " (as the kernel holds it)"
_LAYER = re.compile(r"(layers\.\d+\.\w+)")


def fingerprint(weights: "Tensor") -> int:
    """Of a tensor's scalars, whatever their order, shape and floating-point format; zeros add nothing."""
    import torch

    flat = weights.detach().reshape(-1)
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for part in flat.split(_CHUNK):
        bits = (part.float() + 0.0).view(torch.int32).to(torch.int64)  # -0.0 + 0.0 is 0.0
        bits = bits * _ODD
        bits = (bits ^ ((bits >> 29) & ((1 << 35) - 1))) * _ODD
        total += bits.sum()
    return int(total) % _WORD


def block_of(name: str) -> str:
    """The block that a parameter belongs to, under either side's name: ``layers.3.mlp``, ``embed_tokens``."""
    match = _LAYER.search(name)
    return match[1] if match else name.rpartition(".")[0].rpartition(".")[2] or name


@dataclass
class Transfers:
    """The learner's count of its weight synchronisations.

    Attributes:
        count: how many there were.
        changed: whether the weights have changed since the last.
        memory: bytes that the learner's process had allocated on its GPU at most during the last.
    """

    count: int = 0
    changed: bool = False
    memory: int = 0


@cache
def transfers() -> Transfers:
    """This process's."""
    return Transfers()


class Sent(list):  # type: ignore[type-arg]
    """What upstream's broadcast returns, with the fingerprints of the learner's weights by block.

    ``number``: of the synchronisation, from 1; the first is before the first step.
    """

    def __init__(self, references: Iterable[Any], weights: Mapping[str, int], number: int) -> None:
        super().__init__(references)
        self.weights, self.number = weights, number

    def __reduce__(self) -> Any:
        return Sent, (list(self), self.weights, self.number)


def fingerprinted(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates upstream's broadcast of weights: after it, their fingerprints are taken, every n-th time.

    All ranks come here together, since a partitioned model is gathered parameter by parameter; rank 0 has the result.
    """

    @functools.wraps(broadcast)
    def broadcasting(
        model: Any, vllm_engines: Any, model_update_group: Any, name_mapper: Any = None, **options: Any
    ) -> Any:
        with peak() as memory:
            references = broadcast(model, vllm_engines, model_update_group, name_mapper=name_mapper, **options)
        if not recording():
            return references
        transfers().count += 1
        transfers().changed = False
        transfers().memory = memory.highest
        every = number(EVERY, 1)
        if not every or (transfers().count - 1) % every:
            return references
        weights = learner_weights(model)
        return Sent(references, weights, transfers().count) if weights else references

    return broadcasting


def learner_weights(model: Any) -> dict[str, int]:
    """Fingerprints of the learner's model by block, on rank 0; empty on the others."""
    import torch

    first = not torch.distributed.is_initialized() or torch.distributed.get_rank() == 0
    found: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        whole: Any = contextlib.nullcontext()
        if hasattr(parameter, "ds_id"):
            import deepspeed

            whole = deepspeed.zero.GatheredParameters([parameter])
        with whole:
            if first:
                block = block_of(name)
                found[block] = (found.get(block, 0) + fingerprint(parameter.data)) % _WORD
    return found


class HeldWeights:
    """A part of vLLM's worker class: it answers which weights its model holds."""

    def leonardo_weights(self) -> list[tuple[str, str]]:
        """Each parameter's name and fingerprint (hexadecimal), of this worker's share."""
        return worker_weights(self.model_runner.model)  # type: ignore[attr-defined]


def worker_weights(model: Any) -> list[tuple[str, str]]:
    """Fingerprints of an engine's model by parameter; of what kernels hold in a form of their own, beside it."""
    found: list[tuple[str, str]] = []
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for leaf, parameter in module.named_parameters(recurse=False):
            name = f"{prefix}.{leaf}" if prefix else leaf
            if id(parameter) not in seen and parameter.numel() and parameter.is_floating_point():
                seen.add(id(parameter))
                if not parameter.is_meta:
                    found.append((name, f"{fingerprint(parameter):x}"))
                elif not hasattr(module, "cpu_linear"):
                    found.append((name, _UNSEEN))
        if hasattr(module, "cpu_linear"):
            kept = _is_there(module.weight)
            found.append((f"{prefix}.weight{_KERNEL if kept else ''}", f"{_through_kernel(module):x}"))
    return found


def _is_there(weight: "Tensor") -> bool:
    """Whether a kernel that has a form of the weights of its own left the weights themselves in place."""
    return weight.numel() > 0 and not weight.is_meta


def _through_kernel(module: Any) -> int:
    """The fingerprint of a linear layer's weights as its kernel holds them: its product with the identity is exact."""
    import torch

    width = next(
        value
        for name in ("input_size_per_partition", "input_size", "embedding_dim")
        if (value := getattr(module, name, None))
    )
    kind = module.weight.dtype if _is_there(module.weight) else torch.bfloat16  # upstream's engines compute in it
    total = 0
    with torch.no_grad():
        for start in range(0, width, 512):
            rows = torch.zeros(min(512, width - start), width, dtype=kind)
            rows[range(len(rows)), range(start, start + len(rows))] = 1
            total += fingerprint(module.cpu_linear(rows, module.weight, None))
    return total % _WORD


def held_weights(actor: Any) -> list[list[tuple[str, str]]]:
    """Of each worker of a rollout actor's engine; called in the actor, its generation paused and all weights there."""
    end_weight_update(actor)  # until then the engine may hold a part of them beside its model
    return list(actor._run_async(actor.llm_engine.collective_rpc("leonardo_weights")))


@dataclass(frozen=True)
class Verdict:
    """What a comparison said.

    Attributes:
        agree: None where a block could not be seen in the engine and all others agree.
        digest: SHA-256 of the learner's fingerprints.
        blocks: how many the learner has.
        differ, unseen: names of blocks.
    """

    agree: bool | None
    digest: str
    blocks: int
    differ: Sequence[str]
    unseen: Sequence[str]


def compare(sent: Mapping[str, int], workers: Sequence[Sequence[tuple[str, str]]]) -> Verdict:
    """Hold an engine's weights to the learner's.

    A parameter that is the same on every worker is taken to be a copy, one that is not to be split.
    """
    shares: dict[str, list[int]] = {}
    hidden = {block_of(name) for worker in workers for name, value in worker if value == _UNSEEN}
    for worker in workers:
        for name, value in worker:
            if block_of(name) not in hidden:
                shares.setdefault(name, []).append(int(value, 16))
    whole = {name: each[0] if len(set(each)) == 1 else sum(each) % _WORD for name, each in shares.items()}
    held: dict[str, int] = {}
    for name, value in whole.items():
        if not name.endswith(_KERNEL):
            held[block_of(name)] = (held.get(block_of(name), 0) + value) % _WORD
    differ = {block for block, value in sent.items() if block in held and held[block] != value}
    differ |= {
        name
        for name, value in whole.items()
        if name.endswith(_KERNEL) and value != whole.get(name.removesuffix(_KERNEL), value)
    }
    unseen = sorted(sent.keys() - held.keys())
    digest = hashlib.sha256(json.dumps(sorted(sent.items())).encode()).hexdigest()
    return Verdict(False if differ else None if unseen else True, digest, len(sent), sorted(differ), unseen)


def check_weights(results: Sequence[Any], engines: Sequence[Any], step: int | None) -> None:
    """Compare the engines' weights with those that were sent, if their fingerprints were taken this time.

    What is found is in the step's record, and in a line of ``weights.jsonl``.

    Args:
        results: what the ranks' broadcasts returned.
        engines: upstream's rollout actors, paused.
        step: the training step whose weights they are.
    """
    sent = next((result for result in results if isinstance(result, Sent)), None)
    if sent is None:
        return
    import ray

    from leonardo.hooks.step_records import append_line, note_verdict

    started = time.perf_counter()
    held = ray.get([engine.leonardo_held_weights.remote() for engine in engines], timeout=_PATIENCE)
    verdicts = [compare(sent.weights, workers) for workers in held]
    worst = min(verdicts, key=lambda verdict: {False: 0, None: 1, True: 2}[verdict.agree])
    append_line(
        Path(os.environ[RUN]) / WEIGHTS_FILE,
        {
            "synchronisation": sent.number,
            "step": step,
            **vars(worst),
            "engines": len(held),
            "seconds": round(time.perf_counter() - started, 4),
        },
    )
    note_verdict(worst)
