"""The desk's loss against upstream's own functions, run on the same cases.

They are taken out of upstream's modules by name and run as its trainer runs them, without Ray or a GPU. Where upstream
gives no number (its product of 0 and an overflowed ratio, or its logarithm of a rounded 0) the desk's is the paper's.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from leonardo.engine.desk.dppo import dppo_loss, trust_region_mask
from leonardo.overlay.tree import Tree
from tests.engine.dppo_reference import EDGES, random_case
from tests.upstream.extracted import ROOT, define

THRESHOLD = 0.1
CASES = {f"random {seed}": random_case(seed) for seed in range(10)} | EDGES
OVERFLOWS = {"ratio overflows, masked", "zero advantage, ratio overflows"}
CERTAIN = ("policy became certain", "kl")
"""Infinite divergence in the paper, which masks; upstream takes 1 for 1 - 1e-9, and keeps a token of a near 1 mu."""

Loss = Callable[..., tuple[Any, Any, Any]]


@pytest.fixture(scope="module")
def upstream_loss(upstream: Tree, commit: tuple[str, str]) -> Loss:
    """Upstream's loss of log-probabilities, advantages and response mask: (loss, mask, divergence)."""
    space = define(
        upstream.git("show", f"{commit[1]}:{ROOT}/grpo_utils.py"),
        ["compute_binary_divergence", "compute_dppo_mask", "compute_grpo_loss", "combine_tis_terms"],
        {
            "torch": torch,
            "DPPODivergenceType": SimpleNamespace(tv="tv", kl="kl"),
            "GRPOLossType": SimpleNamespace(dapo="dapo", cispo="cispo", dppo="dppo", tvpo="tvpo"),
        },
    )
    mean = define(upstream.git("show", f"{commit[1]}:{ROOT}/rl_utils.py"), ["masked_mean"], {"torch": torch})[
        "masked_mean"
    ]

    def loss(policy: Any, rollout: Any, advantages: Any, response: Any, kind: str) -> tuple[Any, Any, Any]:
        ratio = torch.exp(policy - rollout)
        advantages = advantages.expand_as(policy)
        mask, divergence = space["compute_dppo_mask"](policy, rollout, advantages, ratio, response, kind, THRESHOLD)
        weights = space["combine_tis_terms"](None, None, None, mask)
        config = SimpleNamespace(loss_fn="dppo")
        _, _, per_token, _ = space["compute_grpo_loss"](policy, ratio, advantages, None, config, weights)
        return mean(per_token, response, None, response.sum()), mask, divergence

    return loss


def test_loss_mask_and_gradient_are_upstreams(upstream_loss: Loss) -> None:
    for name, case in CASES.items():
        for kind in ("tv", "kl"):
            policy, rollout, advantages, response = map(torch.from_numpy, case)
            theirs, ours = policy.clone().requires_grad_(), policy.clone().requires_grad_()
            loss, mask, divergence = upstream_loss(theirs, rollout, advantages, response, kind)
            loss.backward()
            found = dppo_loss(ours, rollout, advantages, response, THRESHOLD, divergence=kind)
            found.loss.backward()
            keep, distance = trust_region_mask(policy, rollout, advantages.expand_as(policy), THRESHOLD, kind)
            where = f"{name}, {kind}"
            if (name, kind) == CERTAIN:
                assert distance.isinf().all() and not keep.any() and mask.tolist() == [[1, 0]]
                continue
            assert torch.equal(keep & response, mask.bool()), where
            # upstream bounds probabilities away from 0 and 1 by 1e-9, which bounds its divergence at about 21 nats
            bounded = distance[response] < 10
            assert torch.allclose(distance[response][bounded], divergence[response][bounded], atol=1e-6), where
            if name in OVERFLOWS:
                assert loss.isnan() and theirs.grad.isnan().any(), where
                assert found.loss.isfinite() and ours.grad.isfinite().all(), where
            else:
                assert found.loss.item() == pytest.approx(loss.item(), rel=1e-6, abs=1e-6), where
                assert torch.allclose(ours.grad, theirs.grad, rtol=1e-6, atol=1e-9), where


def test_in_float32_a_certain_token_breaks_upstreams_kl_alone(upstream_loss: Loss) -> None:
    """A probability of 1 less 1e-9 is 1 in float32, and upstream's logarithm of the rest has no number."""
    policy, rollout = torch.tensor([[-1.0]]), torch.tensor([[0.0]])
    advantages, response = torch.tensor([[-1.0]]), torch.ones(1, 1, dtype=torch.bool)
    _, mask, divergence = upstream_loss(policy, rollout, advantages, response, "kl")
    keep, distance = trust_region_mask(policy, rollout, advantages, THRESHOLD, "kl")
    assert divergence.isnan().item() and mask.item() == 1  # outside of the region, and kept
    assert distance.item() == pytest.approx(1.0) and not keep.item()
