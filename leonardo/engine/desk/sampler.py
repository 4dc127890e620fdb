"""The rollout policy: turns sampled in batches, with the log-probability of every token as it was sampled.

Contexts of different lengths are padded on the left. That is exact for this architecture: full attention masks the
padding, and the gated delta rule begins from an empty state, which padding (zero input) leaves empty. Padding between
turns would not be exact, so that every turn begins with one pass over the whole context.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen3_5ForCausalLM

from leonardo.engine.desk.policy import load_policy
from leonardo.rollout.episodes import TurnSample


class Sampler:
    """Samples from the model's own distribution: temperature 1, nothing cut off, as DPPO's ratio assumes.

    Args:
        model: in evaluation mode; its device is used.
        tokenizer: gives the tokens for padding and end of turn.
        batch: sequences that are sampled at once.
    """

    def __init__(self, model: Qwen3_5ForCausalLM, tokenizer: PreTrainedTokenizerFast, batch: int = 128) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self._batch = batch
        self._end: int = tokenizer.eos_token_id
        self._padding: int = tokenizer.pad_token_id

    @classmethod
    def load(cls, folder: Path, batch: int = 128) -> "Sampler":
        """The policy of a Hugging Face folder."""
        return cls(*load_policy(folder), batch=batch)

    def take_weights(self, weights: Mapping[str, Tensor]) -> str:
        """Hand-over: copy a learner's weights into this model. Returns the digest of what is here now.

        Raises KeyError or RuntimeError where names or shapes differ.
        """
        self.model.load_state_dict(weights)
        return weights_digest(self.model)

    @torch.inference_mode()
    def sample(
        self, contexts: Sequence[Sequence[int]], seeds: Sequence[tuple[int, ...]], max_tokens: int
    ) -> list[TurnSample]:
        """One turn for each context. See :class:`leonardo.rollout.episodes.TurnSampler`."""
        # sequences of similar length share a batch: the less padding, the less work
        order = sorted(range(len(contexts)), key=lambda index: len(contexts[index]))
        samples: dict[int, TurnSample] = {}
        for begin in range(0, len(order), self._batch):
            part = order[begin : begin + self._batch]
            turns = self._sample_batch(
                [contexts[index] for index in part], [seeds[index] for index in part], max_tokens
            )
            samples.update(zip(part, turns, strict=True))
        return [samples[index] for index in range(len(contexts))]

    def _sample_batch(
        self, contexts: Sequence[Sequence[int]], seeds: Sequence[tuple[int, ...]], max_tokens: int
    ) -> list[TurnSample]:
        device = self.model.device
        generators = [np.random.default_rng(seed) for seed in seeds]
        randoms = torch.from_numpy(np.stack([generator.random(max_tokens) for generator in generators])).to(device)
        tokens, mask = left_padded(contexts, self._padding, device)
        cache = None
        live = list(range(len(contexts)))
        turns = [TurnSample([], []) for _ in contexts]
        for step in range(max_tokens):
            output = self.model(
                input_ids=tokens, attention_mask=mask, past_key_values=cache, use_cache=True, logits_to_keep=1
            )
            cache = output.past_key_values
            logprobs = output.logits[:, -1].float().log_softmax(-1)
            chosen = _draw(logprobs, randoms[:, step])
            for row, token, logprob in zip(
                range(len(turns)), chosen.tolist(), logprobs.gather(1, chosen[:, None])[:, 0].tolist(), strict=True
            ):
                if row in live:
                    turns[row].tokens.append(token)
                    turns[row].logprobs.append(logprob)
            live = [row for row in live if turns[row].tokens[-1] != self._end]
            if not live:
                break
            tokens = chosen[:, None]
            mask = torch.cat([mask, torch.ones_like(tokens)], dim=1)
        return turns


def left_padded(contexts: Sequence[Sequence[int]], padding: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, both [batch, longest context], with the padding on the left."""
    longest = max(map(len, contexts))
    tokens = torch.full((len(contexts), longest), padding)
    mask = torch.zeros((len(contexts), longest), dtype=torch.long)
    for row, context in enumerate(contexts):
        tokens[row, longest - len(context) :] = torch.tensor(context)
        mask[row, longest - len(context) :] = 1
    return tokens.to(device), mask.to(device)


def _draw(logprobs: Tensor, randoms: Tensor) -> Tensor:
    """The token of each row [batch] at which its cumulative distribution exceeds the row's random number."""
    cumulative = logprobs.double().exp().cumsum(-1)
    chosen = torch.searchsorted(cumulative, (randoms * cumulative[:, -1])[:, None], right=True)[:, 0]
    return chosen.clamp(max=logprobs.shape[-1] - 1)


def weights_digest(model: nn.Module) -> str:
    """Hex SHA-256 over names and values of all parameters."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()
