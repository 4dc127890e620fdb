"""The rollout policy: batched sampling with a cache, at temperature 1, with the log-probabilities it sampled by.

Contexts are padded on the left. The model's linear attention takes that well as long as the padding stands before
everything else: padded positions are zero on entry, so they leave its convolution and its state as they were. Padding
between turns would not be safe, therefore every turn begins with a prefill of the whole conversation.
"""

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerFast

from leonardo.engine.desk.dialogue import Dialogue
from leonardo.engine.desk.policy import load_policy
from leonardo.rollout.episodes import Generation


class Sampler(Dialogue):
    """A policy for :func:`leonardo.rollout.episodes.run_rollouts`, on one device."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(tokenizer)
        self.model = model.to(device).eval()
        self.device = torch.device(device)
        # transformers renamed the argument and the output's field in 5.2x
        self._cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"

    @classmethod
    def load(cls, folder: Path, device: torch.device | str = "cpu") -> Self:
        """The policy in a Hugging Face folder."""
        loaded = load_policy(folder)
        return cls(loaded.model, loaded.tokenizer, device)

    def take_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy the learner's weights into this policy's own."""
        self.model.load_state_dict(weights)

    @torch.inference_mode()
    def generate(
        self, contexts: Sequence[Sequence[int]], seeds: Sequence[tuple[int, int]], limit: int
    ) -> list[Generation]:
        """See :class:`leonardo.rollout.episodes.Policy`.

        Row i draws its uniform numbers from ``seeds[i]`` alone, so what it samples does not hang on its neighbours (but
        for the rounding of float32 sums, which the batch's shape may change).
        """
        uniform = torch.from_numpy(np.stack([np.random.default_rng(seed).random(limit) for seed in seeds]))
        logits, cache, mask = self._prefill(contexts)
        rows = list(range(len(contexts)))  # which row of the batch each row of the cache is
        tokens: list[list[int]] = [[] for _ in rows]
        logprobs: list[list[float]] = [[] for _ in rows]
        entropies = torch.zeros(len(rows), device=self.device)
        for position in range(limit):
            distribution = logits.float().log_softmax(-1)
            chosen = _draw(distribution, uniform[rows, position].to(self.device))
            entropies[rows] -= (distribution.exp() * distribution).sum(-1)
            values = distribution.gather(-1, chosen).squeeze(-1).tolist()
            for row, token, value in zip(rows, chosen.squeeze(-1).tolist(), values, strict=True):
                tokens[row].append(token)
                logprobs[row].append(value)
            alive = [index for index, row in enumerate(rows) if tokens[row][-1] not in self.ends]
            if not alive or position == limit - 1:
                break
            if len(alive) < len(rows):
                kept = torch.tensor(alive, device=self.device)
                rows = [rows[index] for index in alive]
                cache.reorder_cache(kept)
                mask, chosen = mask[kept], chosen[kept]
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=1)
            logits = self._forward(chosen, mask, mask.sum(1, keepdim=True) - 1, cache)
        return [
            Generation(row_tokens, row_logprobs, entropy / len(row_tokens), row_tokens[-1] in self.ends)
            for row_tokens, row_logprobs, entropy in zip(tokens, logprobs, entropies.tolist(), strict=True)
        ]

    def _prefill(self, contexts: Sequence[Sequence[int]]) -> tuple[Tensor, DynamicCache, Tensor]:
        """Next-token logits, cache and attention mask of the contexts; equal ones (a group's prompts) go in once."""
        unique = list(dict.fromkeys(map(tuple, contexts)))
        where = {context: index for index, context in enumerate(unique)}
        rows = torch.tensor([where[tuple(context)] for context in contexts], device=self.device)
        longest = max(map(len, unique))
        tokens = torch.full((len(unique), longest), self.tokenizer.pad_token_id)
        mask = torch.zeros(len(unique), longest, dtype=torch.long)
        for index, context in enumerate(unique):
            tokens[index, longest - len(context) :] = torch.tensor(context)
            mask[index, longest - len(context) :] = 1
        tokens, mask = tokens.to(self.device), mask.to(self.device)
        cache = DynamicCache(config=self.model.config)
        logits = self._forward(tokens, mask, (mask.cumsum(1) - 1).clamp(min=0), cache)
        cache.reorder_cache(rows)
        return logits[rows], cache, mask[rows]

    def _forward(self, tokens: Tensor, mask: Tensor, positions: Tensor, cache: DynamicCache) -> Tensor:
        output = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            logits_to_keep=1,
            **{self._cache_name: cache},
        )
        return output.logits[:, -1]


def _draw(log_distribution: Tensor, uniform: Tensor) -> Tensor:
    """Tokens by inversion of the distribution function: [batch, vocabulary], [batch] -> [batch, 1]."""
    cumulative = log_distribution.double().exp().cumsum(-1)
    chosen = torch.searchsorted(cumulative, uniform.unsqueeze(-1) * cumulative[:, -1:], right=True)
    return chosen.clamp(max=log_distribution.shape[-1] - 1)
