"""The terminal's one tool: a turn is exactly one whole ``bash`` call, in the model's format, or a format error."""

from dataclasses import dataclass

from leonardo.rollout.formats import QWEN3_XML, Call, ToolCallError, ToolFormat
from leonardo.rollout.prompts import BASH_TOOL

__all__ = ["ToolCall", "ToolCallError", "parse_tool_call", "render_tool_call"]


@dataclass(frozen=True)
class ToolCall:
    """A parsed turn: the text before the call, and the command."""

    thought: str
    command: str


def render_tool_call(command: str, tool_format: ToolFormat = QWEN3_XML) -> str:
    """The call of ``bash`` with ``command``. Raises ValueError where the format cannot carry it."""
    text = tool_format.render([Call("bash", {"command": command})], [BASH_TOOL])
    try:
        parse_tool_call(text, tool_format)
    except ToolCallError as error:
        raise ValueError(f"the {tool_format.name} format cannot carry this command: {error}") from error
    return text


def parse_tool_call(text: str, tool_format: ToolFormat = QWEN3_XML) -> ToolCall:
    """The one ``bash`` call of a turn. Raises :class:`ToolCallError`."""
    turn = tool_format.parse(text, [BASH_TOOL])
    if len(turn.calls) > 1:
        raise ToolCallError("more than one tool call")
    (call,) = turn.calls
    if call.name != "bash":
        raise ToolCallError(f"no tool is called {call.name!r}; the only one is bash")
    for name in call.arguments:
        if name != "command":
            raise ToolCallError(f"bash has no parameter {name!r}; it takes command")
    command = call.arguments.get("command")
    if not isinstance(command, str):
        raise ToolCallError("the command is no text")
    if not command.strip():
        raise ToolCallError("the command is empty")
    if "\0" in command:
        raise ToolCallError("a NUL, which no command can hold")
    return ToolCall(turn.thought, command)
