"""What every tool-call format shares: calls, their errors, the interface, and strict JSON."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Tools = Sequence[Mapping[str, Any]]
"""Tools in OpenAI's form: ``{"type": "function", "function": {"name": ..., "parameters": {...}}}``."""


class ToolCallError(ValueError):
    """A turn whose tool calls cannot be read; the message says what was wrong."""


class NoToolCallError(ToolCallError):
    """A turn that does not even begin a tool call: plain text."""


@dataclass(frozen=True)
class Call:
    """A call: the function's name, and its arguments as a JSON object."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class ParsedTurn:
    """A turn that was read: the text before its calls, and the calls, one at least."""

    thought: str
    calls: tuple[Call, ...]


class ToolFormat(ABC):
    """How a family of models writes tool calls.

    Attributes:
        name: of the format.
        tags: text that belongs to the format alone: where it stands, a call was meant.
        template: for chat templates: the Jinja macro ``calls_text(calls)``, which writes what :meth:`render` does.
    """

    name: str
    tags: tuple[str, ...]
    template: str

    def render(self, calls: Sequence[Call], tools: Tools = ()) -> str:
        """The text of ``calls``. Raises ValueError where the format cannot carry them, and reading would differ."""
        if not calls:
            raise ValueError("there is no call to render")
        try:
            text = self._write(calls, tools)
            carried = self.parse(text, tools)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the {self.name} format cannot carry this call: {error}") from error
        if carried.thought or carried.calls != tuple(calls) or _canonical(carried.calls) != _canonical(calls):
            raise ValueError(f"the {self.name} format cannot carry this call unchanged")
        return text

    def parse(self, text: str, tools: Tools = ()) -> ParsedTurn:
        """The calls of a turn. Total: anything that is not text, then whole calls and nothing more, is an error.

        Args:
            text: what the model said.
            tools: what it was offered; formats that do not write types read values by them. Names are not checked.

        Raises:
            NoToolCallError: it does not begin a call.
            ToolCallError: it does, but not a whole and unambiguous one.
        """
        if not any(tag in text for tag in self.tags):
            raise NoToolCallError("no tool call")
        return self._read(text, tools)

    @abstractmethod
    def _write(self, calls: Sequence[Call], tools: Tools) -> str:
        """The calls as text, where they can be carried."""

    @abstractmethod
    def _read(self, text: str, tools: Tools) -> ParsedTurn:
        """The calls of a text that holds a tag."""


def dump_json(value: Any) -> str:
    """JSON as chat templates write it: characters as they are. Raises ValueError, TypeError for what is no JSON."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    require_unicode(text)
    return text


def load_json(text: str) -> Any:
    """Strict JSON: no name twice in an object, finite numbers, whole characters. Raises ToolCallError."""
    try:
        value = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant, parse_float=finite)
        require_unicode(json.dumps(value, ensure_ascii=False))
    except (ValueError, RecursionError) as error:
        raise ToolCallError(f"no JSON: {str(error)[:80]}") from error
    return value


def call_from_json(text: str, arguments: str) -> Call:
    """A call from an object with ``name`` and what ``arguments`` names, and nothing else. Raises ToolCallError."""
    value = load_json(text)
    if not isinstance(value, dict) or set(value) != {"name", arguments}:
        raise ToolCallError(f"a call has the names name and {arguments}, and no other")
    if not isinstance(value["name"], str) or not value["name"]:
        raise ToolCallError("the function's name is no text")
    if not isinstance(value[arguments], dict):
        raise ToolCallError("the arguments are no object")
    return Call(value["name"], value[arguments])


def require_unicode(text: str) -> None:
    """Raises ToolCallError where ``text`` holds half a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ToolCallError("half a character (a lone surrogate)") from error


def finite(text: str) -> float:
    """A float of JSON. Raises ToolCallError where it is too large."""
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ToolCallError(f"{text[:20]} is too large a number")
    return value


def declared_type(tools: Tools, function: str, parameter: str) -> str:
    """The JSON type that ``tools`` declare for a parameter; ``string`` where they do not say."""
    for tool in tools:
        if tool["function"]["name"] == function:
            declared = tool["function"].get("parameters", {}).get("properties", {}).get(parameter, {})
            return str(declared.get("type", "string"))
    return "string"


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise ToolCallError("a name stands twice in an object")
    return value


def _no_constant(name: str) -> Any:
    raise ToolCallError(f"{name} is no JSON value")


def _canonical(calls: Sequence[Call]) -> list[str]:
    # Python's own comparison takes True for 1
    return [json.dumps([call.name, call.arguments], allow_nan=False) for call in calls]
