"""Qwen3.5's format: XML-like tags without escapes.

A call is ``<tool_call>``, ``<function=NAME>``, for each argument ``<parameter=NAME>`` with the value on lines of its
own, and the closing tags, each on a line of its own. The line break directly inside a parameter's tags belongs to the
tags and has to be there; every other character is the value's. Types are not written: a parameter that is declared as
anything but a string is read as JSON.

A value that holds a tag cannot be carried; nor what vLLM's parser, which is an XML parser's, reads as something else:
control characters but tab and line break, the text ``null``, and names of other signs than letters, digits, ``_.-``.
"""

import re
from collections.abc import Sequence
from typing import Any

from leonardo.rollout.formats.calls import (
    Call,
    ParsedTurn,
    ToolCallError,
    ToolFormat,
    Tools,
    declared_type,
    dump_json,
    load_json,
    require_unicode,
)

_CALL = re.compile(
    r"<tool_call>\s*<function=(?P<function>[^>\n]*)>(?P<parameters>.*?)</function>\s*</tool_call>", re.DOTALL
)
_PARAMETER = re.compile(r"\s*<parameter=(?P<name>[^>\n]*)>\n(?P<value>.*?)\n</parameter>\s*", re.DOTALL)
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_NOT_IN_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class Qwen3Xml(ToolFormat):
    """See the module."""

    name = "qwen3-xml"
    tags = ("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>")
    template = """\
{%- macro calls_text(calls) %}
{%- for call in calls %}
{{- '\\n' if not loop.first }}<tool_call>
<function={{ call.function.name }}>
{% for name, value in call.function.arguments.items() %}<parameter={{ name }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>
{%- endfor %}
{%- endmacro -%}
"""

    def _write(self, calls: Sequence[Call], tools: Tools) -> str:
        return "\n".join(
            f"<tool_call>\n<function={call.name}>\n{''.join(map(_parameter, *_items(call)))}</function>\n</tool_call>"
            for call in calls
        )

    def _read(self, text: str, tools: Tools) -> ParsedTurn:
        matches = list(_CALL.finditer(text))
        if not matches:
            raise ToolCallError("no whole tool call")
        ends = [0, *(match.end() for match in matches)]
        starts = [*(match.start() for match in matches), len(text)]
        between = [text[end:start] for end, start in zip(ends, starts, strict=True)]
        if any(tag in part for part in between for tag in self.tags):
            raise ToolCallError("parts of another tool call around the call")
        if any(part.strip() for part in between[1:]):
            raise ToolCallError("text after the call")
        require_unicode(text)
        return ParsedTurn(between[0].strip(), tuple(self._call(match, tools) for match in matches))

    def _call(self, match: re.Match[str], tools: Tools) -> Call:
        name, body = match["function"], match["parameters"]
        if not _NAME.fullmatch(name):
            raise ToolCallError("the function has no name, or none that the format can write")
        arguments: dict[str, Any] = {}
        at = len(body) if not body.strip() else 0
        while at < len(body):
            parameter = _PARAMETER.match(body, at)
            if parameter is None or not _NAME.fullmatch(parameter["name"]):
                raise ToolCallError("the parameters cannot be read")
            if any(tag in parameter["value"] for tag in self.tags):
                raise ToolCallError("a tag inside a parameter")
            if parameter["name"] in arguments:
                raise ToolCallError(f"the parameter {parameter['name']!r} stands twice")
            arguments[parameter["name"]] = _value(parameter["value"], declared_type(tools, name, parameter["name"]))
            at = parameter.end()
        return Call(name, arguments)


def _value(text: str, declared: str) -> Any:
    if _NOT_IN_XML.search(text):
        raise ToolCallError("a control character in a parameter")
    if declared != "string":
        return load_json(text)
    if text == "null":
        raise ToolCallError("the text null in a parameter")
    return text


def _items(call: Call) -> tuple[Sequence[str], Sequence[Any]]:
    return list(call.arguments), list(call.arguments.values())


def _parameter(name: str, value: Any) -> str:
    return f"<parameter={name}>\n{value if isinstance(value, str) else dump_json(value)}\n</parameter>\n"
