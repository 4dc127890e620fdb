"""DPPO: policy gradient inside a trust region on the divergence of single tokens (arXiv 2602.04879).

The rollout policy mu and the learner's policy pi are compared at each sampled token only: everything else in the
vocabulary is one event, so that the two distributions are Bernoulli and their total variation is ``|pi - mu|`` (the
paper's binary approximation, Eq. 13). A token's update is masked where it would leave the region (Eq. 12): the
divergence exceeds the threshold and the update would increase it. The loss is ``-M * (pi / mu) * A`` (Eq. 11), without
clipping and without a KL term. Upstream's counterparts: ``compute_dppo_mask`` and ``compute_grpo_loss`` in
``open_instruct/grpo_utils.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class TrustRegion:
    """What the loss saw, over response tokens.

    Attributes:
        loss: scalar, mean over the response tokens.
        masked: share of response tokens whose update was masked.
        ratio_mean, ratio_max: of pi / mu.
        ratio_deviation_max: largest ``|pi / mu - 1|``; near 0 on the first pass, where pi is mu.
        divergence_mean, divergence_max: of ``|pi - mu|``.
        difference_mean, difference_max: of ``|log pi - log mu|``.
    """

    loss: Tensor
    masked: float
    ratio_mean: float
    ratio_max: float
    ratio_deviation_max: float
    divergence_mean: float
    divergence_max: float
    difference_mean: float
    difference_max: float


def centred_advantages(rewards: Sequence[float]) -> list[float]:
    """Reward minus the group's mean, for one group; not divided by the standard deviation (arXiv 2503.20783)."""
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def trust_region_mask(
    policy_logprobs: Tensor, rollout_logprobs: Tensor, advantages: Tensor, threshold: float
) -> tuple[Tensor, Tensor]:
    """Which tokens keep their update (Eq. 12), and the binary total variation of each (Eq. 13).

    Args:
        policy_logprobs: log pi of the sampled tokens, any shape.
        rollout_logprobs: log mu of the same, same shape.
        advantages: same shape.
        threshold: radius of the region, in total variation (reference: 0.1).

    Returns:
        (keep, divergence): a bool tensor and a float tensor of that shape, without gradient.
    """
    policy = policy_logprobs.detach().exp()
    rollout = rollout_logprobs.exp()
    divergence = (policy - rollout).abs()
    leaving = ((advantages > 0) & (policy > rollout)) | ((advantages < 0) & (policy < rollout))
    return ~(leaving & (divergence > threshold)), divergence


def dppo_loss(
    policy_logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    threshold: float,
    tokens: int | None = None,
) -> TrustRegion:
    """The DPPO loss (Eq. 11) and its statistics.

    Args:
        policy_logprobs: log pi of each token, with gradient, [batch, length], float32.
        rollout_logprobs: log mu as recorded when the token was sampled, [batch, length].
        advantages: [batch, length] or broadcastable to it, such as [batch, 1].
        response_mask: True where the policy chose the token, [batch, length].
        threshold: radius of the trust region, in total variation.
        tokens: what the sum is divided by; the number of response tokens in ``response_mask`` if not given. With
            several micro-batches a step it is the number in all of them, so that every token weighs the same.
    """
    policy = policy_logprobs[response_mask]
    rollout = rollout_logprobs[response_mask]
    advantage = advantages.expand_as(policy_logprobs)[response_mask]
    count = policy.numel()
    if count == 0:
        raise ValueError("a batch without a response token has no loss")
    ratio = (policy - rollout).exp()
    keep, divergence = trust_region_mask(policy, rollout, advantage, threshold)
    loss = -(ratio * advantage * keep).sum() / (tokens or count)
    detached = ratio.detach()
    difference = (policy.detach() - rollout).abs()
    return TrustRegion(
        loss=loss,
        masked=1.0 - keep.float().mean().item(),
        ratio_mean=detached.mean().item(),
        ratio_max=detached.max().item(),
        ratio_deviation_max=(detached - 1).abs().max().item(),
        divergence_mean=divergence.mean().item(),
        divergence_max=divergence.max().item(),
        difference_mean=difference.mean().item(),
        difference_max=difference.max().item(),
    )


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """log-probability of ``tokens`` [...] under ``logits`` [..., vocabulary], in float32 whatever the logits are."""
    return torch.gather(logits.float().log_softmax(-1), -1, tokens.unsqueeze(-1)).squeeze(-1)
