"""OLMo 3's format: calls as Python writes them, a line each, between tags.

``<function_calls>``, one line ``NAME(ARGUMENT="value", ...)`` a call, ``</function_calls>``. Values are literals of
Python or JSON. Every line break inside a value is escaped, for the line break separates calls.
"""

import ast
import math
import re
from collections.abc import Sequence
from typing import Any

from leonardo.rollout.formats.calls import (
    Call,
    ParsedTurn,
    ToolCallError,
    ToolFormat,
    Tools,
    dump_json,
    require_unicode,
)

_OPENS, _CLOSES = "<function_calls>", "</function_calls>"
_JSON_NAMES = {"null": None, "true": True, "false": False}

# Raw, they would separate lines for Python's splitlines(), which vLLM's parser uses; JSON leaves them as they are.
_LINE_BREAKS = {"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_SEPARATOR = re.compile("[\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029]")

# Python keeps the backslash of an escape it does not know, and reads \1 as a control character: in a command both are
# slips of the model. No backslash stands outside a string, so pairs can be counted from the left.
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)
_KNOWN_ESCAPES = frozenset("\\'\"nrtbfavxuU")


class Olmo3(ToolFormat):
    """See the module."""

    name = "olmo3"
    tags = (_OPENS, _CLOSES)
    template = """\
{%- macro calls_text(calls) %}<function_calls>
{% for call in calls %}{{ call.function.name }}(
{%- for name, value in call.function.arguments.items() %}
{{- ', ' if not loop.first }}{{ name }}=
{{- value | tojson | replace('\\x85', '\\\\u0085')
    | replace('\\u2028', '\\\\u2028') | replace('\\u2029', '\\\\u2029') }}
{%- endfor %})
{% endfor %}</function_calls>
{%- endmacro -%}
"""

    def _write(self, calls: Sequence[Call], tools: Tools) -> str:
        return "\n".join([_OPENS, *map(_line, calls), _CLOSES])

    def _read(self, text: str, tools: Tools) -> ParsedTurn:
        thought, opens, rest = text.partition(_OPENS)
        body, closes, after = rest.partition(_CLOSES)
        if not opens or not closes or any(tag in part for part in (thought, body, after) for tag in self.tags):
            raise ToolCallError("no whole tool call, or parts of another around it")
        if after.strip():
            raise ToolCallError("text after the call")
        calls = tuple(_call(line.strip()) for line in body.split("\n") if line.strip())
        if not calls:
            raise ToolCallError("no call between the tags")
        return ParsedTurn(thought.strip(), calls)


def _line(call: Call) -> str:
    arguments = ", ".join(f"{name}={dump_json(value)}" for name, value in call.arguments.items())
    for character, escape in _LINE_BREAKS.items():
        arguments = arguments.replace(character, escape)
    return f"{call.name}({arguments})"


def _call(line: str) -> Call:
    require_unicode(line)
    if _SEPARATOR.search(line):
        raise ToolCallError("a line break inside a call")
    if any(escape not in _KNOWN_ESCAPES for escape in _ESCAPE.findall(line)):
        raise ToolCallError("an escape that is none")
    try:
        node = ast.parse(line, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ToolCallError(f"no call: {str(error)[:80]}") from error
    if not isinstance(node, ast.Call) or (node.col_offset, node.end_col_offset) != (0, len(line.encode())):
        raise ToolCallError("a line that is more, or other, than a call")
    if node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ToolCallError("an argument without a name")
    arguments = {str(keyword.arg): _value(keyword.value) for keyword in node.keywords}
    if len(arguments) != len(node.keywords):
        raise ToolCallError("an argument stands twice")
    return Call(_name(node.func), arguments)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    if not isinstance(node, ast.Name):
        raise ToolCallError("the function has no name")
    return node.id


def _value(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() as value):
            require_unicode(value)  # an escape may have made half a character
            return value
        case ast.Constant(value=bool() | int() | None as value):
            return value
        case ast.Constant(value=float() as value) if math.isfinite(value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)) if not isinstance(
            value, bool
        ) and math.isfinite(value):
            return -value
        case ast.Name(id=name) if name in _JSON_NAMES:
            return _JSON_NAMES[name]
        case ast.List(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            names = [_value(key) if key is not None else None for key in keys]
            if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
                raise ToolCallError("an object's names are texts, each once")
            return dict(zip(names, map(_value, values), strict=True))
    raise ToolCallError("a value that is no literal")
