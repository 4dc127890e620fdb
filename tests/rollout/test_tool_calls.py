import random
import string

import pytest

from leonardo.rollout.tool_calls import ToolCallError, parse_tool_call, render_tool_call


@pytest.mark.parametrize(
    "command",
    [
        "ls",
        "  leading and trailing  ",
        "cat > a <<'EOF'\nline 1\n\n  line 2\nEOF",
        "echo '<b>' && echo \"{'a': [1, 2]}\" | tr -d '&<>'",
        "printf '\\t\\n'\n",
        "\n\nls\n\n",
        "echo 😀 é",
        "x" * 100_000,
    ],
)
def test_round_trip(command):
    assert parse_tool_call(render_tool_call(command)).command == command


def test_round_trip_of_random_text():
    source = random.Random(7)
    alphabet = string.printable.strip() + " \t\n<>/=é"
    for _ in range(2000):
        command = "".join(source.choices(alphabet, k=source.randrange(1, 40)))
        if command.strip():
            assert parse_tool_call(render_tool_call(command)).command == command


def test_text_before_the_call_is_the_thought():
    assert parse_tool_call("I look.\n" + render_tool_call("ls")).thought == "I look."


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no tool call"),
        ("ls -l", "no tool call"),
        ("<tool_call>\n<function=bash>\n<parameter=command>\nls", "no whole tool call"),
        (render_tool_call("ls") + render_tool_call("pwd"), "more than one"),
        (render_tool_call("ls") + "\n<tool_call>", "around the call"),
        (render_tool_call("ls").replace("bash", "python"), "no tool is called 'python'"),
        (render_tool_call("ls").replace("parameter=command", "parameter=cmd"), "no parameter 'cmd'"),
        (render_tool_call("ls").replace("ls", ""), "empty"),
        ("<tool_call>\n<function=bash>\nls\n</function>\n</tool_call>", "cannot be read"),
        (
            render_tool_call("ls").replace("</function>", "<parameter=timeout>\n3\n</parameter>\n</function>"),
            "no parameter 'timeout'",
        ),
        ('<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>', "no whole tool call"),
    ],
)
def test_malformed_turns_are_errors_and_never_commands(text, complaint):
    with pytest.raises(ToolCallError, match=complaint):
        parse_tool_call(text)


@pytest.mark.parametrize(
    "command", ["", " \n", "a\r\n", "a\x00", "null", "echo </parameter>", "echo '<tool_call>'", "a </function> b"]
)
def test_what_the_format_cannot_carry_is_refused(command):
    with pytest.raises(ValueError, match="cannot carry"):
        render_tool_call(command)
