"""From conversation to tokens and back, by the tokenizer's own chat template.

What the policy wrote is never tokenized again: prompts and observations are turned into tokens once, and appended.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from leonardo.rollout.prompts import BASH_TOOL, messages_of
from leonardo.tasks.task import Task


class Tokenizer(Protocol):
    """What is needed of a Hugging Face tokenizer."""

    eos_token_id: int

    def apply_chat_template(self, conversation: Sequence[dict[str, str]], **settings: Any) -> Any: ...

    def encode(self, text: str, **settings: Any) -> list[int]: ...

    def decode(self, tokens: Sequence[int], **settings: Any) -> str: ...


class Chat:
    """The chat template of a policy, for the terminal harness."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.end = tokenizer.eos_token_id
        """The token that ends a turn."""
        self.observation_tokens = lru_cache(maxsize=4096)(self._observation_tokens)

    def prompt_tokens(self, task: Task) -> list[int]:
        """System prompt, tool, instruction, and the beginning of the policy's first turn."""
        return self._tokenizer.encode(self._render(messages_of(task)), add_special_tokens=False)

    def text(self, tokens: Sequence[int]) -> str:
        """What the policy wrote in a turn, without the token that ends it."""
        kept = tokens[:-1] if tokens and tokens[-1] == self.end else tokens
        return self._tokenizer.decode(kept, skip_special_tokens=False)

    def turn_tokens(self, text: str) -> list[int]:
        """A turn's text as tokens, with the token that ends it."""
        return [*self._tokenizer.encode(text, add_special_tokens=False), self.end]

    def _observation_tokens(self, text: str) -> tuple[int, ...]:
        """What stands between the end of a turn and the beginning of the next: the tool's answer."""
        # A marker turn shows where the template goes on after a turn; the end token itself is the policy's.
        marker = "\u241f"
        turns = [{"role": "user", "content": marker}, {"role": "assistant", "content": marker}]
        rendered = self._render([*turns, {"role": "tool", "content": text}])
        begin = rendered.index(marker, rendered.index(marker) + 1) + len(marker)
        end_text = self._tokenizer.decode([self.end], skip_special_tokens=False)
        after = rendered[begin:].removeprefix(end_text)
        return tuple(self._tokenizer.encode(after, add_special_tokens=False))

    def _render(self, messages: Sequence[dict[str, str]]) -> str:
        return self._tokenizer.apply_chat_template(
            messages, tools=[BASH_TOOL], tokenize=False, add_generation_prompt=True
        )
