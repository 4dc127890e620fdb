"""Conversations as tokens: the prompt by the chat template, then turn and observation appended piece by piece.

The pieces, put together, are the tokens of the whole conversation as the template renders it. What is not text (format,
template, the tokens that end a turn) is kept with the tokenizer, so that a policy's folder is enough to talk to it.
"""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from leonardo.errors import InputError
from leonardo.rollout.episode import Messages
from leonardo.rollout.families import Family, Listing, message_frame, render_chat
from leonardo.rollout.formats import QWEN3_XML, ToolFormat, Tools, format_named
from leonardo.rollout.prompts import BASH_TOOL

_FORMAT, _ENDS = "tool_call_format", "turn_ends"
"""Where a tokenizer keeps them: in its own settings file."""


def dress(tokenizer: PreTrainedTokenizerFast, family: Family, listing: Listing) -> PreTrainedTokenizerFast:
    """Give a tokenizer the family's chat template, its special tokens and its tool-call format, in place.

    Raises InputError where its vocabulary lacks one of the family's tokens.
    """
    tokens = family.tokens
    vocabulary = tokenizer.get_vocab()
    if missing := [name for name in (tokens.padding, *tokens.ends, *tokens.control) if name not in vocabulary]:
        raise InputError(
            f"the tokenizer has no {missing[0]}, a token of family {family.name}",
            "Name the family that the model is of",
        )
    tokenizer.add_special_tokens(
        {
            "eos_token": tokens.ends[0],
            "pad_token": tokens.padding,
            "additional_special_tokens": [*tokens.control, *tokens.ends[1:]],
        }
    )
    tokenizer.chat_template = family.chat_template(listing)
    tokenizer.init_kwargs |= {_FORMAT: family.format, _ENDS: list(tokens.ends)}
    return tokenizer


def turn_ends(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The tokens that end a turn; the first is the one that is written."""
    return tokenizer.convert_tokens_to_ids(tokenizer.init_kwargs.get(_ENDS, [tokenizer.eos_token]))


class Dialogue:
    """The half of :class:`leonardo.rollout.episodes.Policy` that needs no model.

    Attributes:
        end: the token that is written at the end of a turn.
        ends: all that end a turn where the model samples them.
        tool_format: how calls are written.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer
        self.end: int = tokenizer.eos_token_id
        self.ends = frozenset(turn_ends(tokenizer))
        settings = tokenizer.init_kwargs
        self.tool_format: ToolFormat = format_named(settings[_FORMAT]) if _FORMAT in settings else QWEN3_XML
        self._result, self._request = self._around("tool"), self._around("user")

    def prompt(self, messages: Messages, tools: Tools = (BASH_TOOL,)) -> list[int]:
        """Tokens of a conversation, up to and with the opening of the policy's turn."""
        template = str(self.tokenizer.chat_template)
        return self._encode(render_chat(template, messages, tools, opens_turn=True))

    def turn(self, text: str) -> list[int]:
        """Tokens of a turn that says ``text``, with the one that ends it."""
        return [*self._encode(text, plain=True), self.end]

    def observation(self, text: str) -> list[int]:
        """Tokens between two turns, with an observation. What a command prints cannot forge control tokens."""
        return self._shown(text, *self._result)

    def request(self, text: str) -> list[int]:
        """Tokens between two turns, with what the user says next."""
        return self._shown(text, *self._request)

    def text(self, tokens: Sequence[int]) -> str:
        """What a turn says, without the token that ends it."""
        kept = tokens[:-1] if tokens and tokens[-1] in self.ends else tokens
        return self.tokenizer.decode(list(kept), skip_special_tokens=False)

    def _encode(self, text: str, plain: bool = False) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=plain)

    def _shown(self, text: str, opens: list[int], before: str, after: str, closes: list[int]) -> list[int]:
        return [*opens, *self._encode(f"{before}{text}{after}", plain=True), *closes]

    def _around(self, role: str) -> tuple[list[int], str, str, list[int]]:
        """What the template writes from a turn's end to the text of a ``role``'s message, and on to the next turn.

        Tokens up to the last control token before the text, the text from there, and the same behind it.
        """
        frame = message_frame(str(self.tokenizer.chat_template), self.tokenizer.eos_token, role)
        opens, closes = frame.before + frame.opens, frame.closes + frame.after
        marks = self.tokenizer.all_special_tokens
        start = max((opens.rfind(mark) + len(mark) for mark in marks if mark in opens), default=0)
        stop = min((closes.find(mark) for mark in marks if mark in closes), default=0)
        return self._encode(opens[:start]), opens[start:], closes[:stop], self._encode(closes[stop:])
