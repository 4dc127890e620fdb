"""The Hermes format, which Qwen3 writes: a JSON object between tags, one pair of tags a call.

``<tool_call>``, ``{"name": NAME, "arguments": {...}}`` and ``</tool_call>``, each on a line of its own. Tags inside a
string of the object would end the call, so they cannot be carried.
"""

import re
from collections.abc import Sequence

from leonardo.rollout.formats.calls import (
    Call,
    ParsedTurn,
    ToolCallError,
    ToolFormat,
    Tools,
    call_from_json,
    dump_json,
)

_CALL = re.compile(r"<tool_call>(?P<object>.*?)</tool_call>", re.DOTALL)


class Hermes(ToolFormat):
    """See the module."""

    name = "hermes"
    tags = ("<tool_call>", "</tool_call>")
    template = """\
{%- macro calls_text(calls) %}
{%- for call in calls %}
{{- '\\n' if not loop.first }}<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{%- endmacro -%}
"""

    def _write(self, calls: Sequence[Call], tools: Tools) -> str:
        objects = (dump_json({"name": call.name, "arguments": dict(call.arguments)}) for call in calls)
        return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects)

    def _read(self, text: str, tools: Tools) -> ParsedTurn:
        matches = list(_CALL.finditer(text))
        rest = _CALL.sub("", text)
        if not matches:
            raise ToolCallError("no whole tool call")
        if any(tag in part for part in (rest, *(match["object"] for match in matches)) for tag in self.tags):
            raise ToolCallError("parts of another tool call around the call")
        thought = text[: matches[0].start()]
        if rest[len(thought) :].strip():
            raise ToolCallError("text after the call")
        return ParsedTurn(thought.strip(), tuple(call_from_json(match["object"], "arguments") for match in matches))
