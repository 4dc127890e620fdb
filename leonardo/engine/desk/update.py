"""The learner's half of a step: the DPPO update of the policy's weights, with what there is to say about it."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedModel

from leonardo.engine.desk.batches import pad, response_logprobs
from leonardo.engine.desk.config import LearnerConfig
from leonardo.engine.desk.dppo import TrustRegion, centred_advantages, dppo_loss
from leonardo.rollout.episode import Rollout


@dataclass
class UpdateStatistics:
    """What an update did. Means are over response tokens of all passes.

    Attributes:
        first_pass_ratio_max_deviation: largest ``|ratio - 1|`` before the first change of weights.
        difference_mean, difference_max: of ``|log pi - log mu|``, before the first change of weights.
        gradient_norms: of each optimizer step, before the limit.
        non_finite: ``loss``, or names of parameters with the part (gradient, weight) that was not finite.
    """

    learning_rate: float = 0.0
    tokens: int = 0
    loss: float = 0.0
    masked: float = 0.0
    ratio_mean: float = 0.0
    ratio_max: float = 0.0
    divergence_mean: float = 0.0
    divergence_max: float = 0.0
    first_pass_ratio_max_deviation: float = 0.0
    difference_mean: float = 0.0
    difference_max: float = 0.0
    gradient_norms: list[float] = field(default_factory=list)
    update_norm: float = 0.0
    moved_share: float = 0.0
    non_finite: list[str] = field(default_factory=list)

    def add(self, region: TrustRegion, tokens: int, share: float, first: bool) -> None:
        """Take in a micro-batch of ``tokens`` response tokens, whose loss is divided by ``tokens / share``."""
        self.tokens += tokens
        for name in ("masked", "ratio_mean", "divergence_mean"):
            mean = getattr(self, name)
            setattr(self, name, mean + (getattr(region, name) - mean) * tokens / self.tokens)
        loss = region.loss.item() / share
        self.loss += (loss - self.loss) * tokens / self.tokens
        self.ratio_max = max(self.ratio_max, region.ratio_max)
        self.divergence_max = max(self.divergence_max, region.divergence_max)
        if first:  # so far all tokens are of the first pass
            self.difference_mean += (region.difference_mean - self.difference_mean) * tokens / self.tokens
            self.difference_max = max(self.difference_max, region.difference_max)
            self.first_pass_ratio_max_deviation = max(self.first_pass_ratio_max_deviation, region.ratio_deviation_max)


@dataclass(frozen=True)
class _Sample:
    rollout: Rollout
    advantage: float


class Learner:
    """The policy that is trained, with its optimizer.

    Args:
        config: of the learner.
        model: trained in place.
        accelerator: decides device and precision.
    """

    def __init__(self, config: LearnerConfig, model: PreTrainedModel, accelerator: Accelerator) -> None:
        self.config = config
        self._accelerator = accelerator
        # no dropout anywhere in the model; train mode would only change kernels
        optimizer = torch.optim.AdamW(model.parameters(), config.learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
        self._model, self._optimizer = accelerator.prepare(model.eval(), optimizer)

    @property
    def model(self) -> PreTrainedModel:
        """The model as it is now."""
        return self._accelerator.unwrap_model(self._model)

    def weights(self) -> dict[str, Tensor]:
        """The weights as they are now, for the rollout policy to copy."""
        return self.model.state_dict()

    def state(self) -> dict[str, Any]:
        """Weights and the optimizer's state, to go on from."""
        return {"weights": self.weights(), "optimizer": self._optimizer.state_dict()}

    def take_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` gave."""
        self.model.load_state_dict(state["weights"])
        self._optimizer.load_state_dict(state["optimizer"])

    def update(self, groups: Sequence[Sequence[Rollout]], step: int) -> UpdateStatistics:
        """Train on the kept groups: ``passes`` times over, each in ``minibatches`` optimizer steps.

        If a loss, gradient or weight is not finite, the weights are again what they were, and the statistics name it.
        """
        config = self.config
        statistics = UpdateStatistics(learning_rate=config.learning_rate * min(1.0, step / max(1, config.warm_up)))
        samples = [
            _Sample(rollout, advantage)
            for group in groups
            for rollout, advantage in zip(group, centred_advantages([r.reward for r in group]), strict=True)
        ]
        if not samples:
            return statistics
        for settings in self._optimizer.param_groups:
            settings["lr"] = statistics.learning_rate
        before = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}
        random = Random(step)
        for number in range(config.passes):
            shuffled = random.sample(samples, len(samples))
            parts = min(config.minibatches, len(samples))
            for part in range(parts):
                first = number == 0 and part == 0
                if not self._optimizer_step(shuffled[part::parts], statistics, step, first):
                    self._restore(before)
                    return statistics
        statistics.non_finite += [
            f"{name} (weight)" for name, weight in self.model.named_parameters() if not torch.isfinite(weight).all()
        ]
        if statistics.non_finite:
            self._restore(before)
            return statistics
        changes = [(weight.detach() - before[name]) for name, weight in self.model.named_parameters()]
        statistics.update_norm = math.sqrt(sum(change.double().square().sum().item() for change in changes))
        moved = sum(int((change != 0).sum()) for change in changes)
        statistics.moved_share = moved / sum(change.numel() for change in changes)
        return statistics

    @torch.no_grad()
    def _restore(self, weights: Mapping[str, Tensor]) -> None:
        for name, weight in self.model.named_parameters():
            weight.copy_(weights[name])

    def _optimizer_step(self, samples: Sequence[_Sample], statistics: UpdateStatistics, step: int, first: bool) -> bool:
        """One update over ``samples``; False, and no update, where something is not finite."""
        total = sum(sample.rollout.response_tokens for sample in samples)
        # like lengths together, so that little is padding
        ordered = sorted(samples, key=lambda sample: len(sample.rollout.tokens))
        size = self.config.micro_batch
        for at in range(0, len(ordered), size):
            self._backward(ordered[at : at + size], total, statistics, first)
        self.config.faults.spoil_gradient(self.model, step)
        # before the limit: it would spread one tensor's NaN over all
        bad = [
            f"{name} (gradient)"
            for name, weight in self.model.named_parameters()
            if weight.grad is not None and not torch.isfinite(weight.grad).all()
        ]
        if not math.isfinite(statistics.loss):
            bad.insert(0, "loss")
        if bad:
            statistics.non_finite += bad
            self._optimizer.zero_grad()
            return False
        norm = self._accelerator.clip_grad_norm_(self._model.parameters(), self.config.gradient_limit)
        statistics.gradient_norms.append(float(norm))
        self._optimizer.step()
        self._optimizer.zero_grad()
        return True

    def _backward(self, samples: Sequence[_Sample], total: int, statistics: UpdateStatistics, first: bool) -> None:
        device = self._accelerator.device
        rollouts = [sample.rollout for sample in samples]
        batch = pad([rollout.tokens for rollout in rollouts], [rollout.response_mask for rollout in rollouts], device)
        chosen = torch.tensor(
            [
                value
                for r in rollouts
                for value, is_response in zip(r.logprobs, r.response_mask, strict=True)
                if is_response
            ]
        ).to(device)
        advantages = torch.tensor(
            [sample.advantage for sample in samples for _ in range(sample.rollout.response_tokens)]
        ).to(device)
        with self._accelerator.autocast():
            logprobs = response_logprobs(self.model, batch)
        everything = torch.ones_like(logprobs, dtype=torch.bool)
        config = self.config
        region = dppo_loss(logprobs, chosen, advantages, everything, config.threshold, total, config.divergence)
        self._accelerator.backward(region.loss)
        statistics.add(region, logprobs.numel(), logprobs.numel() / total, first)


def digest_of_weights(weights: Mapping[str, Tensor]) -> str:
    """Hex SHA-256 of a state dict: names, shapes, types and bytes."""
    digest = hashlib.sha256()
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
