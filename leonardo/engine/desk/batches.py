"""Token sequences as padded batches, and the log-probabilities a policy gives them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from leonardo.engine.desk.dppo import token_logprobs


@dataclass(frozen=True)
class Batch:
    """Sequences padded on the right; the model is causal, so what stands after a token cannot reach it.

    Attributes:
        tokens: [batch, length].
        response: True where the policy (or the demonstration) chose the token, [batch, length].
    """

    tokens: Tensor
    response: Tensor


def pad(sequences: Sequence[Sequence[int]], masks: Sequence[Sequence[bool]], device: torch.device | str) -> Batch:
    """A :class:`Batch` of these sequences. A sequence's first token cannot be predicted and is never a response."""
    longest = max(map(len, sequences))
    tokens = torch.zeros(len(sequences), longest, dtype=torch.long)
    response = torch.zeros(len(sequences), longest, dtype=torch.bool)
    for row, (sequence, mask) in enumerate(zip(sequences, masks, strict=True)):
        tokens[row, : len(sequence)] = torch.tensor(sequence)
        response[row, : len(mask)] = torch.tensor(mask)
    response[:, 0] = False
    return Batch(tokens.to(device), response.to(device))


def response_logprobs(model: PreTrainedModel, batch: Batch) -> Tensor:
    """log-probabilities of the response tokens under ``model``: [number of them], in row-major order.

    The head runs in float32 whatever the model's precision, and on the response positions only.
    """
    hidden = model.model(input_ids=batch.tokens, use_cache=False).last_hidden_state[:, :-1]
    predicted = batch.response[:, 1:]
    head = model.lm_head
    with torch.autocast(batch.tokens.device.type, enabled=False):
        logits = torch.nn.functional.linear(hidden[predicted].float(), head.weight.float())
    return token_logprobs(logits, batch.tokens[:, 1:][predicted])
