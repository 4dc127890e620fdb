"""The loss against a reference in NumPy float64, written from the paper's equations, token by token."""

import math

import numpy as np
import pytest
import torch

from leonardo.engine.desk.dppo import centred_advantages, dppo_loss, token_logprobs, trust_region_mask

THRESHOLD = 0.1


def reference(policy, rollout, advantages, mask, threshold=THRESHOLD):
    total, masked, count = 0.0, 0, 0
    for row in range(policy.shape[0]):
        for column in range(policy.shape[1]):
            if not mask[row, column]:
                continue
            pi, mu = math.exp(policy[row, column]), math.exp(rollout[row, column])
            advantage = advantages[row, 0]
            outside = abs(pi - mu) > threshold
            blocked = outside and ((advantage > 0 and pi / mu > 1) or (advantage < 0 and pi / mu < 1))
            count += 1
            masked += blocked
            total -= 0.0 if blocked else pi / mu * advantage
    return total / count, masked / count


def case(seed, rows=5, columns=9, spread=0.7):
    source = np.random.default_rng(seed)
    policy = np.log(source.uniform(1e-4, 1.0, (rows, columns)))
    rollout = np.minimum(policy + source.normal(0, spread, policy.shape), 0.0)
    advantages = source.choice([-0.75, -0.25, 0.0, 0.25, 0.75], (rows, 1))
    mask = source.random((rows, columns)) < 0.7
    mask[0, 0] = True
    return policy, rollout, advantages, mask


@pytest.mark.parametrize("seed", range(20))
def test_loss_and_mask_agree_with_the_reference(seed):
    policy, rollout, advantages, mask = case(seed)
    loss, masked = reference(policy, rollout, advantages, mask)
    found = dppo_loss(*map(torch.from_numpy, (policy, rollout, advantages, mask)), threshold=THRESHOLD)
    assert found.loss.item() == pytest.approx(loss, abs=1e-9)
    assert found.masked == pytest.approx(masked, abs=1e-6)


def test_the_cases_do_mask():
    assert sum(reference(*case(seed))[1] > 0 for seed in range(20)) >= 15


def test_only_updates_that_leave_the_region_are_masked():
    policy = torch.tensor([0.6, 0.6, 0.4, 0.4, 0.55]).log()
    rollout = torch.tensor([0.4, 0.4, 0.6, 0.6, 0.5]).log()
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    keep, divergence = trust_region_mask(policy, rollout, advantages, THRESHOLD)
    assert keep.tolist() == [False, True, True, False, True]
    assert divergence.tolist() == pytest.approx([0.2, 0.2, 0.2, 0.2, 0.05], abs=1e-6)


def test_gradient_by_finite_differences():
    policy, rollout, advantages, mask = (torch.from_numpy(array) for array in case(3, rows=2, columns=4))
    policy.requires_grad_()
    # away from the region's edge the loss is smooth
    assert torch.autograd.gradcheck(
        lambda values: dppo_loss(values, rollout, advantages, mask, THRESHOLD).loss, (policy,), eps=1e-7, atol=1e-5
    )


def test_masked_tokens_have_no_gradient():
    policy = torch.tensor([[0.9, 0.45]]).log().requires_grad_()
    rollout = torch.tensor([[0.4, 0.4]]).log()
    dppo_loss(policy, rollout, torch.ones(1, 1), torch.ones(1, 2, dtype=torch.bool), THRESHOLD).loss.backward()
    assert policy.grad[0, 0] == 0
    assert policy.grad[0, 1] != 0


def test_on_the_first_pass_the_loss_is_the_policy_gradient():
    logprobs = torch.tensor([[-0.5, -2.0, -0.1]], requires_grad=True)
    found = dppo_loss(
        logprobs, logprobs.detach(), torch.full((1, 1), 0.5), torch.ones(1, 3, dtype=torch.bool), THRESHOLD
    )
    found.loss.backward()
    assert (found.masked, found.ratio_deviation_max, found.divergence_max) == (0, 0, 0)
    assert logprobs.grad.tolist() == [pytest.approx([-0.5 / 3] * 3)]


def test_micro_batches_add_up_to_the_batch():
    policy, rollout, advantages, mask = (torch.from_numpy(array) for array in case(11))
    whole = dppo_loss(policy, rollout, advantages, mask, THRESHOLD).loss
    tokens = int(mask.sum())
    parts = sum(
        dppo_loss(policy[rows], rollout[rows], advantages[rows], mask[rows], THRESHOLD, tokens).loss
        for rows in (slice(0, 2), slice(2, 5))
    )
    assert parts.item() == pytest.approx(whole.item(), abs=1e-12)


def test_a_batch_without_response_is_refused():
    with pytest.raises(ValueError, match="response token"):
        dppo_loss(torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 1), torch.zeros(1, 2, dtype=torch.bool), 0.1)


def test_advantages_are_centred_and_not_scaled():
    assert centred_advantages([1, 0, 0, 0]) == [0.75, -0.25, -0.25, -0.25]
    assert centred_advantages([1, 1]) == [0, 0]


def test_logprobs_are_float32_of_low_precision_logits():
    logits = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    low = token_logprobs(logits.bfloat16(), tokens)
    assert low.dtype == torch.float32
    expected = torch.log_softmax(logits.bfloat16().float(), -1)
    assert low[1, 2] == expected[1, 2, 6]
