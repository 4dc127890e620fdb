import json
import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leonardo.rollout.formats import FORMATS, Call, NoToolCallError, ToolCallError, ToolFormat, format_named

EVERY = pytest.mark.parametrize("tool_format", FORMATS.values(), ids=FORMATS)

TYPES = {"city": "string", "days": "integer", "share": "number", "exact": "boolean", "tags": "array", "more": "object"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {key: {"type": kind} for key, kind in TYPES.items()}},
        },
    }
    for name in ("weather", "bash")
]

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=6
)
names = st.text(string.ascii_lowercase, min_size=1, max_size=8)
calls = st.lists(st.builds(Call, names, st.dictionaries(names, values, max_size=3)), min_size=1, max_size=3)


def as_json(found: Any) -> list[str]:
    return [json.dumps([call.name, call.arguments]) for call in found]


@EVERY
@settings(max_examples=60, deadline=None)
@given(calls=calls)
def test_what_is_rendered_is_read_back_or_refused(tool_format, calls):
    try:
        text = tool_format.render(calls, TOOLS)
    except ValueError:
        return
    assert as_json(tool_format.parse(text, TOOLS).calls) == as_json(calls)


@EVERY
def test_typed_arguments_and_several_calls_are_carried(tool_format):
    asked = [
        Call(
            "weather", {"city": "Köln", "days": -3, "share": 0.5, "exact": True, "tags": ["a", None], "more": {"x": 1}}
        ),
        Call("weather", {"city": "3"}),
        Call("weather", {}),
    ]
    found = tool_format.parse("Both.\n" + tool_format.render(asked, TOOLS), TOOLS)
    assert found.thought == "Both."
    assert as_json(found.calls) == as_json(asked)


@EVERY
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_parsers_are_total(tool_format: ToolFormat, data):
    """Pieces of the formats in any order: read, or refused with the format's own error."""
    pieces = [tag for entry in FORMATS.values() for tag in entry.tags]
    pieces += ["bash(command=", '"ls"', ")", '{"name": "bash", ', '"parameters": {}}', '"arguments": {"a": ', "\n", ">"]
    text = "".join(data.draw(st.lists(st.sampled_from(pieces) | st.text(max_size=5), max_size=12)))
    try:
        found = tool_format.parse(text, TOOLS)
    except ToolCallError:
        return
    assert found.calls


@EVERY
@pytest.mark.parametrize("cut", [1, 5, 11])
def test_a_call_that_is_cut_off_is_an_error(tool_format, cut):
    text = tool_format.render([Call("bash", {"command": "rm -r build"})], TOOLS)
    with pytest.raises(ToolCallError):
        tool_format.parse(text[:-cut], TOOLS)
    with pytest.raises(ToolCallError):
        tool_format.parse(text + "\n" + text[:-cut], TOOLS)


@EVERY
def test_plain_text_is_told_from_a_broken_call(tool_format):
    with pytest.raises(NoToolCallError):
        tool_format.parse("None of the tools helps here.")
    with pytest.raises(ToolCallError) as caught:
        tool_format.parse(tool_format.tags[0])
    assert not isinstance(caught.value, NoToolCallError)


@EVERY
def test_text_after_a_call_is_an_error(tool_format):
    with pytest.raises(ToolCallError):
        tool_format.parse(tool_format.render([Call("bash", {"command": "ls"})]) + "\nand so on")


@EVERY
@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", {1: 2}, {"a", "b"}, (1, 2)])
def test_what_is_no_json_is_refused(tool_format, value):
    with pytest.raises(ValueError, match="cannot carry"):
        tool_format.render([Call("weather", {"more": value})], TOOLS)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "bash", "arguments": {"command": "a", "command": "b"}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "bash", "arguments": {"command": NaN}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "bash", "arguments": {"command": "\\ud800"}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "bash", "arguments": {}, "id": 1}</tool_call>'),
        ("hermes", '<tool_call>{"name": "bash", "arguments": "{}"}</tool_call>'),
        ("hermes", '<tool_call>[{"name": "bash", "arguments": {}}]</tool_call>'),
        ("hermes", f"<tool_call>{'[' * 50_000}</tool_call>"),
        ("llama3-json", '{"name": "bash", "arguments": {}}'),
        ("llama3-json", '{"name": "bash", "parameters": {}} {"name": "bash", "parameters": {}}'),
        ("llama3-json", 'a {set} and {"name": "bash", "parameters": {}}'),
        ("llama3-json", f"{'{' * 50_000}"),
        ("olmo3", '<function_calls>\nbash("ls")\n</function_calls>'),
        ("olmo3", "<function_calls>\nbash(command='''a\nb''')\n</function_calls>"),
        ("olmo3", "<function_calls>\nbash(command='\\d')\n</function_calls>"),
        ("olmo3", "<function_calls>\nbash(command='\\1')\n</function_calls>"),
        ("olmo3", "<function_calls>\nbash(command=f'{x}')\n</function_calls>"),
        ("olmo3", "<function_calls>\nbash(command='a', command='b')\n</function_calls>"),
        ("olmo3", "<function_calls>\nbash(command='a' + 'b')\n</function_calls>"),
        ("olmo3", "<function_calls>\nbash(command='a'); bash(command='b')\n</function_calls>"),
        ("olmo3", "<function_calls>\nbash(command='a') # safe\n</function_calls>"),
        ("olmo3", "<function_calls>\nbash(command='a\u2028b')\n</function_calls>"),
        ("olmo3", "<function_calls>\nx = bash(command='a')\n</function_calls>"),
        ("olmo3", "<function_calls>\nbash(**{'command': 'a'})\n</function_calls>"),
        ("olmo3", f"<function_calls>\nbash(command={'[' * 5000})\n</function_calls>"),
        ("olmo3", "<function_calls>\n</function_calls>"),
        (
            "qwen3-xml",
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=a>\n2\n</parameter>\n"
            "</function>\n</tool_call>",
        ),
        ("qwen3-xml", "<tool_call>\n<function=>\n</function>\n</tool_call>"),
        ("qwen3-xml", '<tool_call>\n<function="bash>\n</function>\n</tool_call>'),
        (
            "qwen3-xml",
            "<tool_call>\n<function=bash>\n<parameter=co\\mand>\nls\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            "qwen3-xml",
            "<tool_call>\n<function=weather>\n<parameter=days>\nthree\n</parameter>\n</function>\n</tool_call>",
        ),
    ],
)
def test_doubtful_calls_are_errors(name, text):
    with pytest.raises(ToolCallError):
        format_named(name).parse(text, TOOLS)
