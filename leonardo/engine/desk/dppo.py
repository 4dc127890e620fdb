"""DPPO: policy gradient inside a trust region on the divergence of single tokens (arXiv 2602.04879).

The rollout policy mu and the learner's policy pi are compared at each sampled token only: everything else in the
vocabulary is one event, so that the two distributions are Bernoulli. Their divergence is the total variation
``|pi - mu|`` (the paper's Eq. 13, the reference recipe's choice) or the Kullback-Leibler divergence of mu from pi
(Eq. 14). A token's update is masked where it would leave the region (Eq. 12): the divergence exceeds the threshold and
the update would increase it. The loss is ``-M * (pi / mu) * A`` (Eq. 11), without clipping and without a KL term.
Upstream's counterparts: ``compute_binary_divergence``, ``compute_dppo_mask`` and ``compute_grpo_loss`` in
``open_instruct/grpo_utils.py``. docs/learner.md says where they differ at the ends of what floats can hold.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from leonardo.engine.desk.config import Divergence


@dataclass(frozen=True)
class TrustRegion:
    """What the loss saw, over response tokens.

    Attributes:
        loss: scalar, mean over the response tokens.
        masked: share of response tokens whose update was masked.
        ratio_mean, ratio_max: of pi / mu.
        ratio_deviation_max: largest ``|pi / mu - 1|``; near 0 on the first pass, where pi is mu.
        divergence_mean, divergence_max: of the binary divergence.
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


def binary_divergence(policy_logprobs: Tensor, rollout_logprobs: Tensor, kind: Divergence = "tv") -> Tensor:
    """Divergence of the two Bernoulli distributions "the sampled token, or any other", of each token.

    Args:
        policy_logprobs: log pi of the sampled tokens, any shape.
        rollout_logprobs: log mu of the same, same shape.
        kind: ``tv`` for ``|pi - mu|`` (Eq. 13), ``kl`` for KL(mu, pi) (Eq. 14), which may be infinite.
    """
    if kind == "tv":
        return (policy_logprobs.exp() - rollout_logprobs.exp()).abs()
    policy_logprobs, rollout_logprobs = policy_logprobs.clamp(max=0), rollout_logprobs.clamp(max=0)  # rounding
    rollout = rollout_logprobs.exp()
    # 1 - p by expm1: what is left beside a probability near 1 keeps its digits
    policy_rest, rollout_rest = -torch.expm1(policy_logprobs), -torch.expm1(rollout_logprobs)
    token = torch.where(rollout > 0, rollout * (rollout_logprobs - policy_logprobs), 0)
    rest = torch.where(rollout_rest > 0, rollout_rest * (rollout_rest.log() - policy_rest.log()), 0)
    return token + rest


def trust_region_mask(
    policy_logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    threshold: float,
    divergence: Divergence = "tv",
) -> tuple[Tensor, Tensor]:
    """Which tokens keep their update (Eq. 12), and the binary divergence of each.

    Args:
        policy_logprobs: log pi of the sampled tokens, any shape.
        rollout_logprobs: log mu of the same, same shape.
        advantages: same shape.
        threshold: radius of the region (reference: 0.1 in total variation).
        divergence: its measure.

    Returns:
        (keep, divergence): a bool tensor and a float tensor of that shape, without gradient.
    """
    policy = policy_logprobs.detach()
    leaving = ((advantages > 0) & (policy > rollout_logprobs)) | ((advantages < 0) & (policy < rollout_logprobs))
    distance = binary_divergence(policy, rollout_logprobs, divergence)
    return ~(leaving & (distance > threshold)), distance


def dppo_loss(
    policy_logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    response_mask: Tensor,
    threshold: float,
    tokens: int | None = None,
    divergence: Divergence = "tv",
) -> TrustRegion:
    """The DPPO loss (Eq. 11) and its statistics.

    Args:
        policy_logprobs: log pi of each token, with gradient, [batch, length], float32.
        rollout_logprobs: log mu as recorded when the token was sampled, [batch, length].
        advantages: [batch, length] or broadcastable to it, such as [batch, 1].
        response_mask: True where the policy chose the token, [batch, length].
        threshold: radius of the trust region.
        tokens: what the sum is divided by; the number of response tokens in ``response_mask`` if not given. With
            several micro-batches a step it is the number in all of them, so that every token weighs the same.
        divergence: measure of the trust region.
    """
    policy = policy_logprobs[response_mask]
    rollout = rollout_logprobs[response_mask]
    advantage = advantages.expand_as(policy_logprobs)[response_mask]
    count = policy.numel()
    if count == 0:
        raise ValueError("a batch without a response token has no loss")
    keep, distance = trust_region_mask(policy, rollout, advantage, threshold, divergence)
    # a token that adds nothing is left out rather than multiplied by 0: where its ratio overflows, 0 times it is NaN
    adds = keep & (advantage != 0)
    loss = -((policy[adds] - rollout[adds]).exp() * advantage[adds]).sum() / (tokens or count)
    apart = policy.detach() - rollout
    ratio = apart.exp()
    return TrustRegion(
        loss=loss,
        masked=1.0 - keep.float().mean().item(),
        ratio_mean=ratio.mean().item(),
        ratio_max=ratio.max().item(),
        ratio_deviation_max=(ratio - 1).abs().max().item(),
        divergence_mean=distance.mean().item(),
        divergence_max=distance.max().item(),
        difference_mean=apart.abs().mean().item(),
        difference_max=apart.abs().max().item(),
    )


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """log-probability of ``tokens`` [...] under ``logits`` [..., vocabulary], in float32 whatever the logits are."""
    return torch.gather(logits.float().log_softmax(-1), -1, tokens.unsqueeze(-1)).squeeze(-1)
