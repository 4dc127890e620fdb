"""Llama 3's format: JSON objects without tags around them.

``{"name": NAME, "parameters": {...}}``; several are separated by semicolons. A turn holds text without braces, then
calls and nothing after them.
"""

import json
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

_PYTHON_TAG = "<|python_tag|>"
_DECODER = json.JSONDecoder()


class Llama3Json(ToolFormat):
    """See the module. The tag of Llama's own interpreter may stand before the calls; it is not rendered."""

    name = "llama3-json"
    tags = ("{", _PYTHON_TAG)
    template = """\
{%- macro calls_text(calls) %}
{%- for call in calls %}
{{- '; ' if not loop.first }}
{{- '{"name": ' ~ call.function.name | tojson ~ ', "parameters": ' ~ call.function.arguments | tojson ~ '}' }}
{%- endfor %}
{%- endmacro -%}
"""

    def _write(self, calls: Sequence[Call], tools: Tools) -> str:
        return "; ".join(dump_json({"name": call.name, "parameters": dict(call.arguments)}) for call in calls)

    def _read(self, text: str, tools: Tools) -> ParsedTurn:
        thought, brace, _ = text.partition("{")
        if not brace:
            raise ToolCallError("no whole tool call")
        calls, at = [], len(thought)
        while True:
            try:
                _, end = _DECODER.raw_decode(text, at)
            except (ValueError, RecursionError) as error:
                raise ToolCallError(f"no JSON: {str(error)[:80]}") from error
            calls.append(call_from_json(text[at:end], "parameters"))
            rest = text[end:].strip()
            if not rest:
                return ParsedTurn(thought.removesuffix(_PYTHON_TAG).strip(), tuple(calls))
            at = text.find("{", end)
            if at < 0 or text[end:at].strip() != ";":
                raise ToolCallError("text after the call")
