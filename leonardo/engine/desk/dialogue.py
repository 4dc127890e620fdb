"""Conversations as tokens: the prompt by the chat template, then turn and observation appended piece by piece.

The pieces, put together, are the tokens of the whole conversation as the template renders it.
"""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from leonardo.engine.desk.policy import TURN_END
from leonardo.rollout.episodes import Messages
from leonardo.rollout.prompts import BASH_TOOL

_OBSERVATION_OPENS = "\n<|im_start|>user\n<tool_response>\n"
_OBSERVATION_CLOSES = "\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


class Dialogue:
    """The half of :class:`leonardo.rollout.episodes.Policy` that needs no model."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.end: int = tokenizer.convert_tokens_to_ids(TURN_END)
        self._opens = tokenizer.encode(_OBSERVATION_OPENS)
        self._closes = tokenizer.encode(_OBSERVATION_CLOSES)

    def prompt(self, messages: Messages) -> list[int]:
        """Tokens of a conversation, up to and with the opening of the policy's turn."""
        text = self.tokenizer.apply_chat_template(
            [dict(message) for message in messages], tools=[BASH_TOOL], add_generation_prompt=True, tokenize=False
        )
        return self.tokenizer.encode(text)

    def turn(self, text: str) -> list[int]:
        """Tokens of a turn that says ``text``, with the one that ends it."""
        return [*self.tokenizer.encode(text), self.end]

    def observation(self, text: str) -> list[int]:
        """Tokens between two turns, with an observation. What a command prints cannot forge control tokens."""
        return [*self._opens, *self.tokenizer.encode(text, split_special_tokens=True), *self._closes]

    def text(self, tokens: Sequence[int]) -> str:
        """What a turn says, without the token that ends it."""
        kept = tokens[:-1] if tokens and tokens[-1] == self.end else tokens
        return self.tokenizer.decode(list(kept), skip_special_tokens=False)
