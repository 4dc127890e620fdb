"""What the learner's ranks see of a step, for the step records: log-probabilities, losses, gradients, the update.

Each rank gives its own sums; :mod:`leonardo.hooks.step_records` puts them together, so that nothing here waits for
another rank. Figures stay on the device until the step's end. Nothing is measured unless ``LEONARDO_RUN`` is set.
"""

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from leonardo.hooks.failures import number, recording
from leonardo.hooks.fingerprints import transfers
from leonardo.hooks.memory import peak
from leonardo.hooks.rollout_records import GROUPS

EVIDENCE = "leonardo"
"""The key of a rank's evidence in what its step returns."""

SAMPLE = "LEONARDO_UPDATE_SAMPLE"

_WAITED = "time/trainer_idle_waiting_for_inference"
_SUMS = ("tokens", "ratio", "divergence", "entropy", "entropy_tokens", "own_tokens", "difference", "loss")
_HIGHEST = ("ratio", "divergence", "own_deviation", "difference")
_CHECKED = ("log-probabilities", "rollout log-probabilities", "advantages", "loss")
_NOT_A_LOGPROB = 0.5
"""Upstream puts 1 where there is no log-probability; those that are one are at most 0."""


def empty_step(trainer: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """What a rank returns of a step without data; nothing where nothing is recorded."""
    return {EVIDENCE: _of_batch(trainer, batch)} if recording() else {}


def watch_step(trainer: Any, batch: Mapping[str, Any], data: Any) -> "Watch | NoWatch":
    """Watch a step of upstream's trainer.

    Args:
        trainer: upstream's process of a rank.
        batch: what its data loader gave, with the metrics of the data preparation.
        data: the tensors that it trains on, a list a field.
    """
    return Watch(trainer, batch, data) if recording() else NoWatch()


class NoWatch:
    """Sees nothing."""

    def saw(self, *arguments: Any, **options: Any) -> None:
        """Nothing."""

    def figures(self, kept: Any, total: Any) -> dict[str, Any]:
        """None."""
        return {}


class Watch:
    """One rank's view of one step; see :func:`watch_step`."""

    def __init__(self, trainer: Any, batch: Mapping[str, Any], data: Any) -> None:
        import torch

        self._figures = _of_batch(trainer, batch)
        self._started = time.perf_counter()
        self._counting = ExitStack()
        self._memory = self._counting.enter_context(peak())
        self._data, self._engine = data, trainer.model
        device = data.response_masks[0].device
        self._sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=device)
        self._highest = torch.zeros(len(_HIGHEST), dtype=torch.float64, device=device)
        self._bad = torch.zeros(len(_CHECKED), dtype=torch.bool, device=device)
        self._own = torch.tensor(self._figures.pop("own"), dtype=torch.long, device=device)
        self.steps = 0
        self._gradient = True
        self.norms: list[float] = []
        self.rates: list[float] = []
        self.changes: list[dict[str, float]] = []
        watch_engine(self._engine)
        self._engine.leonardo_watch = self

    def saw(
        self, index: int, policy: Any, rollout: Any, advantages: Any, mask: Any, loss: Any, entropy: Any = None
    ) -> None:
        """Take in a micro-batch before its gradient is computed.

        Args:
            index: its place in the step's data.
            policy, rollout: log-probabilities of its tokens by learner and rollout engine, [batch, length].
            advantages: of the same shape.
            mask: True where the policy chose the token.
            loss: scalar, as its gradient is taken.
            entropy: of each token's distribution, where upstream computes it.
        """
        import torch

        with torch.no_grad():
            policy, rollout = policy.detach().double(), rollout.detach().double()
            known = mask & (rollout < _NOT_A_LOGPROB)
            nothing = torch.zeros_like(policy)
            difference = torch.where(known, policy - rollout, nothing)
            ratio = torch.where(known, difference.exp(), nothing)
            divergence = torch.where(known, (policy.exp() - rollout.exp()).abs(), nothing)
            own = known & self._sampled_with_these_weights(index, known)
            own_difference = torch.where(own, difference.abs(), nothing)
            own_deviation = torch.where(own, (ratio - 1).abs(), nothing)
            spread = torch.where(mask, entropy.detach().double(), nothing) if entropy is not None else nothing
            tokens = mask.sum() if entropy is not None else mask.new_zeros(())
            self._sums += torch.stack(
                [
                    *(each.sum().double() for each in (known, ratio, divergence, spread, tokens, own, own_difference)),
                    loss.detach().double().reshape(()),
                ]
            )
            highest = torch.stack([each.max() for each in (ratio, divergence, own_deviation, own_difference)])
            self._highest = torch.maximum(self._highest, highest)
            self._bad |= torch.stack(
                [
                    (mask & ~policy.isfinite()).any(),
                    (mask & ~known).any(),
                    (mask & ~advantages.isfinite()).any(),
                    ~loss.detach().isfinite().reshape(()),
                ]
            )

    def _sampled_with_these_weights(self, index: int, like: Any) -> Any:
        import torch

        if self.steps or transfers().changed or not len(self._own) or self._data.rollout_sample_ids is None:
            return torch.zeros_like(like)
        return torch.isin(self._data.rollout_sample_ids[index][:, 1:], self._own)

    def updated(self, before: "list[_Part]", rate: float | None, finite: bool) -> None:
        """The engine's optimizer has made a step from ``before``, with a gradient that was ``finite``."""
        self.steps += 1
        self._gradient = self._gradient and finite
        norm = self._engine.get_global_grad_norm()
        if norm is not None:
            self.norms.append(float(norm))
        if rate is not None:
            self.rates.append(rate)
        self.changes.append(_change(before))

    def figures(self, kept: Any, total: Any) -> dict[str, Any]:
        """All of it, for upstream's step to return.

        Args:
            kept, total: response tokens that the trust region left, and all that it was asked about.
        """
        self._engine.leonardo_watch = None
        self._counting.close()
        sums, highest, bad = self._sums.tolist(), self._highest.tolist(), self._bad.tolist()
        broken = [name for name, is_bad in zip(_CHECKED, bad, strict=True) if is_bad]
        if not self._gradient or not all(math.isfinite(norm) for norm in self.norms):
            broken.append("gradient")
        broken += non_finite_weights(self._engine.module)
        self._figures["update"] = {
            "sums": dict(zip(_SUMS, sums, strict=True)),
            "highest": dict(zip(_HIGHEST, highest, strict=True)),
            "steps": self.steps,
            "norms": self.norms,
            "rates": self.rates,
            "kept": float(kept),
            "asked": float(total),
            "non_finite": broken,
            "seconds": time.perf_counter() - self._started,
            "memory": {
                "held": self._memory.held,
                "update": self._memory.highest,
                "hand_over": transfers().memory,
            },
            **{name: sum(change[name] for change in self.changes) for name in ("squared", "moved", "scalars")},
        }
        return {EVIDENCE: self._figures}


def _of_batch(trainer: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """What came with the data; the groups from rank 0 alone, since all ranks get the same."""
    groups = batch["metrics"].pop(GROUPS, [])
    kept = [weights for group in groups if group["kept"] for weights in group["weights"]]
    own = [number for number, weights in enumerate(kept) if weights is not None and weights == transfers().count]
    figures = {"own": own, "waited": batch["metrics"].get(_WAITED), "shards": trainer.dp_world_size}
    return figures | ({"groups": groups} if trainer.rank == 0 else {})


def watch_engine(engine: Any) -> None:
    """Let an engine of DeepSpeed tell whoever watches of its optimizer's steps."""
    if hasattr(engine, "leonardo_watch"):
        return
    inner = engine.step

    def step(*arguments: Any, **options: Any) -> Any:
        transfers().changed = True
        watch = engine.leonardo_watch
        if watch is None:
            return inner(*arguments, **options)
        before, finite = _parts(engine), _has_finite_gradient(engine)
        rates = [group["lr"] for group in engine.optimizer.param_groups]
        answer = inner(*arguments, **options)
        watch.updated(before, float(rates[0]) if rates else None, finite)
        return answer

    engine.leonardo_watch = None
    engine.step = step


def _has_finite_gradient(engine: Any) -> bool:
    """Of this rank's share under ZeRO stage 3, whose norm takes what is not finite for -1, and squares it."""
    gradient = getattr(engine.optimizer, "grad_partitions_flat_buffer", None)
    return gradient is None or bool(gradient.isfinite().all())


class _Part:
    """A tensor of this rank's share, and a copy (of every n-th scalar) of what it held."""

    def __init__(self, tensor: Any, stride: int, weight: float, master: bool) -> None:
        self.tensor, self.stride, self.weight, self.master = tensor, stride, weight, master
        self.before = self.sample().clone()

    def sample(self) -> Any:
        """Every n-th scalar as it is now."""
        return self.tensor.detach().reshape(-1)[:: self.stride]


_MASTERS = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition")
"""Where DeepSpeed's optimizers keep a rank's share of the float32 weights (ZeRO stage 3; 1 and 2; bfloat16)."""


def _parts(engine: Any) -> list[_Part]:
    """This rank's share of the weights: float32, whose change is the update, and as the model computes with them.

    A share that other ranks have too counts by its part.
    """
    import torch

    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    masters = next((found for name in _MASTERS if (found := getattr(engine.optimizer, name, None))), None)
    weights = [(getattr(each, "ds_tensor", each), hasattr(each, "ds_tensor")) for each in engine.module.parameters()]
    stride = max(1, math.ceil(sum(tensor.numel() for tensor, _ in weights) / max(1, number(SAMPLE, 1 << 26))))
    parts = [_Part(tensor, stride, 1.0 if split else 1.0 / ranks, False) for tensor, split in weights if tensor.numel()]
    if masters is None:
        return parts
    return parts + [_Part(tensor, stride, 1.0, True) for tensor in masters if tensor.numel()]


def _change(before: list[_Part]) -> dict[str, float]:
    """Square of the update's norm, scalars that moved, scalars in all: of this rank's share, estimated from samples."""
    import torch

    has_masters = any(part.master for part in before)
    squared, moved, scalars = [], [], 0.0
    for part in before:
        now, factor = part.sample(), part.stride * part.weight
        if part.master or not has_masters:
            squared.append((now.double() - part.before.double()).square().sum() * factor)
        if not part.master:
            moved.append((now != part.before).sum().double() * factor)
            scalars += now.numel() * factor
    return {
        "squared": float(torch.stack(squared).sum()) if squared else 0.0,
        "moved": float(torch.stack(moved).sum()) if moved else 0.0,
        "scalars": scalars,
    }


def non_finite_weights(module: Any) -> list[str]:
    """Names of parameters of which this rank's share holds what is no number."""
    import torch

    named = [(name, getattr(each, "ds_tensor", each).detach()) for name, each in module.named_parameters()]
    if not named:
        return []
    finite = torch.stack([share.isfinite().all() for _, share in named]).tolist()
    return [f"{name} (weight)" for (name, _), fine in zip(named, finite, strict=True) if not fine]
