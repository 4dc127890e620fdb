"""Tool calls in the qwen3-xml format: what is rendered and what is understood.

A call is ``<tool_call>``, ``<function=NAME>``, one ``<parameter=NAME>`` with the value on lines of its own for each
argument, and the closing tags, each on a line of its own. One line break directly inside a parameter's tags belongs to
the tags; every other character is the value's. There is no escaping, so a value that holds a closing tag cannot be
rendered. The parser is total and strict: a turn is exactly one whole ``bash`` call or a format error, never a guess.
"""

import re
from dataclasses import dataclass

_CALL = re.compile(
    r"<tool_call>\s*<function=(?P<function>[^>\n]*)>(?P<parameters>.*?)</function>\s*</tool_call>", re.DOTALL
)
_PARAMETER = re.compile(r"\s*<parameter=(?P<name>[^>\n]*)>\n?(?P<value>.*?)\n?</parameter>\s*", re.DOTALL)
_TAGS = ("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>")


class ToolCallError(ValueError):
    """A turn without exactly one valid ``bash`` call; the message says what was wrong."""


@dataclass(frozen=True)
class ToolCall:
    """A parsed turn: the text before the call, and the command."""

    thought: str
    command: str


def render_tool_call(command: str) -> str:
    """The call of ``bash`` with ``command``. Raises ValueError where the format cannot carry it."""
    text = f"<tool_call>\n<function=bash>\n<parameter=command>\n{command}\n</parameter>\n</function>\n</tool_call>"
    try:
        carried = parse_tool_call(text).command
    except ToolCallError as error:
        raise ValueError(f"the qwen3-xml format cannot carry this command: {error}") from error
    if carried != command:
        raise ValueError("the qwen3-xml format cannot carry this command unchanged")
    return text


def parse_tool_call(text: str) -> ToolCall:
    """The one ``bash`` call of a turn. Raises :class:`ToolCallError`."""
    calls = list(_CALL.finditer(text))
    if not calls:
        raise ToolCallError("no whole tool call" if any(tag in text for tag in _TAGS) else "no tool call")
    if len(calls) > 1:
        raise ToolCallError("more than one tool call")
    call = calls[0]
    if any(tag in text[: call.start()] or tag in text[call.end() :] for tag in _TAGS):
        raise ToolCallError("parts of another tool call around the call")
    if call["function"] != "bash":
        raise ToolCallError(f"no tool is called {call['function']!r}; the only one is bash")
    body = call["parameters"]
    parameter = _PARAMETER.fullmatch(body)
    if parameter is None:
        raise ToolCallError("the parameters cannot be read")
    if any(tag in parameter["value"] for tag in _TAGS):
        raise ToolCallError("a tag inside the command")
    if parameter["name"] != "command":
        raise ToolCallError(f"bash has no parameter {parameter['name']!r}; it takes command")
    if not parameter["value"].strip():
        raise ToolCallError("the command is empty")
    return ToolCall(thought=text[: call.start()].strip(), command=parameter["value"])
