"""The loss against a reference in NumPy float64, written from the paper's equations, token by token."""

from functools import partial

import numpy as np
import pytest
import torch

from leonardo.engine.desk.dppo import centred_advantages, dppo_loss, token_logprobs, trust_region_mask
from tests.engine.dppo_reference import EDGES, random_case, reference

THRESHOLD = 0.1
CASES = {f"random {seed}": random_case(seed) for seed in range(20)} | EDGES


def tensors(case):
    return [torch.from_numpy(array) for array in case]


@pytest.mark.parametrize("kind", ["tv", "kl"])
@pytest.mark.parametrize("name", CASES)
def test_loss_gradient_and_mask_agree_with_the_reference(name, kind):
    case = CASES[name]
    expected = reference(*case, THRESHOLD, kind)
    policy, rollout, advantages, response = tensors(case)
    policy.requires_grad_()
    found = dppo_loss(policy, rollout, advantages, response, THRESHOLD, divergence=kind)
    found.loss.backward()
    keep, divergence = trust_region_mask(policy, rollout, advantages.expand_as(policy), THRESHOLD, kind)
    assert found.loss.item() == pytest.approx(expected.loss, rel=1e-6, abs=1e-6)
    assert found.masked == pytest.approx(expected.masked, abs=1e-6)
    assert (keep & response).tolist() == expected.keep.tolist()
    assert divergence[response].tolist() == pytest.approx(expected.divergence[case[3]].tolist(), rel=1e-6, abs=1e-6)
    assert policy.grad.flatten().tolist() == pytest.approx(expected.gradient.flatten().tolist(), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("kind", ["tv", "kl"])
def test_the_cases_do_mask(kind):
    assert sum(reference(*random_case(seed), THRESHOLD, kind).masked > 0 for seed in range(20)) >= 15


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("ratio overflows, kept")])
def test_in_float32_nothing_is_lost_but_digits(name):
    policy, rollout, advantages, response = (
        tensor.float() if tensor.is_floating_point() else tensor for tensor in tensors(CASES[name])
    )
    # the reference gets what the learner gets: log-probabilities that were rounded
    rounded = [array.double().numpy() for array in (policy, rollout, advantages)]
    expected = reference(*rounded, response.numpy(), THRESHOLD)
    found = dppo_loss(policy, rollout, advantages, response, THRESHOLD)
    assert found.loss.item() == pytest.approx(expected.loss, rel=1e-4, abs=1e-4)
    assert found.masked == pytest.approx(expected.masked, abs=1e-4)


@pytest.mark.parametrize("kind", ["tv", "kl"])
@pytest.mark.parametrize("seed", range(5))
def test_gradient_by_finite_differences(seed, kind):
    policy, rollout, advantages, response = random_case(seed, rows=2, columns=6)
    # a difference across the region's edge would measure the jump there
    away = np.abs(reference(policy, rollout, advantages, response, THRESHOLD, kind).divergence - THRESHOLD) > 1e-3
    response &= away & (np.abs(policy - rollout) > 1e-3)
    policy, rollout, advantages, response = tensors((policy, rollout, advantages, response))
    policy.requires_grad_()
    loss = partial(dppo_loss, rollout_logprobs=rollout, advantages=advantages, response_mask=response)
    assert torch.autograd.gradcheck(
        lambda values: loss(values, threshold=THRESHOLD, divergence=kind).loss, (policy,), eps=1e-6, atol=1e-7
    )


def test_gradient_of_weights_by_finite_differences():
    """From the loss through the log-probabilities to the weights of a head."""
    source = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(shape, generator=source, dtype=torch.double) for shape in ((6, 4), (5, 4)))
    tokens = torch.randint(5, (6,), generator=source)
    rollout = (hidden @ weight.mT).log_softmax(-1)[torch.arange(6), tokens] + 0.05
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5, 1.0, 0.0], dtype=torch.double)
    weight = (weight + 0.3 * torch.randn(weight.shape, generator=source, dtype=torch.double)).requires_grad_()

    def loss(values):
        logprobs = (hidden @ values.mT).log_softmax(-1)[torch.arange(6), tokens]
        return dppo_loss(logprobs, rollout, advantages, torch.ones(6, dtype=torch.bool), THRESHOLD).loss

    assert torch.autograd.gradcheck(loss, (weight,), eps=1e-6, atol=1e-7)


def test_only_updates_that_leave_the_region_are_masked():
    policy = torch.tensor([0.6, 0.6, 0.4, 0.4, 0.55]).log()
    rollout = torch.tensor([0.4, 0.4, 0.6, 0.6, 0.5]).log()
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    keep, divergence = trust_region_mask(policy, rollout, advantages, THRESHOLD)
    assert keep.tolist() == [False, True, True, False, True]
    assert divergence.tolist() == pytest.approx([0.2, 0.2, 0.2, 0.2, 0.05], abs=1e-6)


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
    policy, rollout, advantages, mask = tensors(random_case(11))
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
