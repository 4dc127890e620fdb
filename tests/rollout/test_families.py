import pytest

from leonardo.errors import InputError
from leonardo.rollout.families import Family, family_names, load_family, render_chat
from leonardo.rollout.formats import Call
from leonardo.rollout.prompts import BASH_TOOL

ALL = [load_family(name) for name in family_names()]
EVERY = pytest.mark.parametrize("family", ALL, ids=family_names())

CALLS = [Call("bash", {"command": 'echo "a\x85\u2028"\nls <é>'}), Call("bash", {"command": "ls", "n": -1, "t": [True]})]
TYPES = {"command": "string", "n": "integer", "t": "array"}
TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "parameters": {
            "type": "object",
            "properties": {
                name: {"type": kind} for name, kind in {"command": "string", "n": "integer", "t": "array"}.items()
            },
        },
    },
}


def as_message(calls: list[Call], thought: str = "") -> dict:
    made = [{"type": "function", "function": {"name": call.name, "arguments": call.arguments}} for call in calls]
    return {"role": "assistant", "content": thought, "tool_calls": made}


@EVERY
@pytest.mark.parametrize("listing", ["brief", "json"])
def test_the_template_writes_calls_as_the_format_does(family: Family, listing):
    text = render_chat(family.chat_template(listing), [as_message(CALLS, "I look.")], [TOOL])
    said = "I look.\n" + family.tool_format.render(CALLS, [TOOL])
    assert said + family.tokens.ends[0] in text


@EVERY
def test_the_listings_show_the_tools(family: Family):
    messages = [{"role": "system", "content": "Solve it."}]
    assert "Solve it.\nTool: bash(command)" in render_chat(family.chat_template("brief"), messages, [BASH_TOOL])
    whole = render_chat(family.chat_template("json"), messages, [BASH_TOOL])
    assert BASH_TOOL["function"]["description"] in whole
    assert "NAME" in whole


@EVERY
def test_transformers_renders_the_same(family: Family):
    templates = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}, as_message(CALLS)]
    messages.append({"role": "tool", "content": "done"})
    template = family.chat_template("json")
    (expected,), _ = templates.render_jinja_template(
        [messages], [TOOL], chat_template=template, add_generation_prompt=True
    )
    assert render_chat(template, messages, [TOOL], opens_turn=True) == expected


def test_the_digest_names_what_decides_a_conversation():
    assert len({family.digest for family in ALL}) == len(ALL)


def test_a_family_with_an_unknown_format_or_turns_is_an_input_error(tmp_path):
    path = tmp_path / "toy.yaml"
    text = (
        "name: toy\nformat: hermes\nturns: toy.j2\nresults: {role: user}\n"
        "tokens: {padding: p, ends: [e]}\narchitecture: {type: llama, layers: [full_attention]}\n"
        "upstream: {parser: a:B}\n"
    )
    path.write_text(text)
    with pytest.raises(InputError, match=r"toy\.j2 is not there"):
        load_family(path)
    path.write_text(text.replace("hermes", "morse"))
    with pytest.raises(InputError, match="morse"):
        load_family(path)
