import pytest
import torch

from leonardo.engine.desk.dppo import token_logprobs
from leonardo.engine.desk.sampler import Sampler, _draw

CONTEXTS = [[5, 6, 7], list(range(10, 90)), [5, 6, 7], list(range(30, 47)), list(range(200, 265))]
SEEDS = [(1, 0), (1, 1), (2, 0), (3, 0), (4, 2)]


@pytest.fixture
def sampler(micro) -> Sampler:
    # weights large enough that the distribution is far from uniform and hangs on the context
    with torch.no_grad():
        for weight in micro.model.parameters():
            if weight.ndim == 2:
                weight.mul_(6)
    return Sampler(micro.model, micro.tokenizer)


def teacher_forced(sampler: Sampler, context: list[int], tokens: list[int]) -> list[float]:
    """log-probabilities without padding, batch or cache."""
    with torch.inference_mode():
        logits = sampler.model(torch.tensor([[*context, *tokens]]), use_cache=False).logits[0, len(context) - 1 : -1]
    return token_logprobs(logits, torch.tensor(tokens)).tolist()


def test_recorded_logprobs_are_those_of_the_unpadded_uncached_model(sampler):
    generations = sampler.generate(CONTEXTS, SEEDS, limit=70)  # crosses the blocks of the linear attention
    for context, generation in zip(CONTEXTS, generations, strict=True):
        assert 1 <= len(generation.tokens) <= 70
        expected = teacher_forced(sampler, context, generation.tokens)
        assert generation.logprobs == pytest.approx(expected, abs=1e-4)
    assert min(min(generation.logprobs) for generation in generations) < -1


def test_rows_that_end_early_leave_the_others_as_they_were(sampler):
    free = sampler.generate(CONTEXTS, SEEDS, limit=30)
    ending = free[1].tokens[3]  # as if this ended a turn
    sampler.ends = frozenset({ending})
    generations = sampler.generate(CONTEXTS, SEEDS, limit=30)
    lengths = []
    for before, after in zip(free, generations, strict=True):
        kept = before.tokens.index(ending) + 1 if ending in before.tokens else 30
        assert after.tokens == before.tokens[:kept]
        assert after.logprobs == pytest.approx(before.logprobs[:kept], abs=1e-4)
        assert after.finished == (ending in before.tokens)
        lengths.append(kept)
    assert min(lengths) <= 4 < max(lengths)


def test_a_row_hangs_on_its_seed_and_not_on_its_neighbours(sampler):
    together = sampler.generate(CONTEXTS, SEEDS, limit=12)
    alone = [sampler.generate([c], [s], limit=12)[0] for c, s in zip(CONTEXTS, SEEDS, strict=True)]
    assert [generation.tokens for generation in together] == [generation.tokens for generation in alone]
    assert together[0].tokens != together[2].tokens  # the same prompt, another seed
    assert sampler.generate(CONTEXTS[:1], [(1, 1)], limit=12)[0].tokens != together[0].tokens  # another turn


def test_draws_follow_the_distribution():
    probabilities = torch.tensor([0.5, 0.0, 0.2, 0.3])
    uniform = (torch.arange(1000) + 0.5) / 1000
    drawn = _draw(probabilities.log().expand(1000, 4), uniform).squeeze(-1)
    assert torch.bincount(drawn, minlength=4).tolist() == [500, 0, 200, 300]
    assert _draw(probabilities.log()[None], torch.tensor([0.0])).item() == 0
    assert _draw(torch.tensor([[0.0, -float("inf")]]), torch.tensor([1.0 - 1e-9], dtype=torch.double)).item() == 0


def test_weights_are_copied_not_shared(sampler, micro):
    weights = {name: weight + 1 for name, weight in micro.model.state_dict().items()}
    sampler.take_weights(weights)
    name = next(iter(weights))
    weights[name].zero_()
    assert not torch.equal(sampler.model.state_dict()[name], weights[name])
