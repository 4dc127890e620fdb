import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from leonardo.cli import app
from leonardo.errors import InputError
from leonardo.gates.agreement import compare
from leonardo.gates.formats import damaged_turns, fuzzed_commands, misread, round_trip
from leonardo.rollout.families import family_names, load_family
from leonardo.rollout.formats import FORMATS, Call, ParsedTurn, ToolFormat, format_named
from leonardo.rollout.formats.hermes import Hermes
from leonardo.rollout.tool_calls import render_tool_call
from leonardo.stages.definition import load_model, load_stage
from leonardo.stages.families import check_command, check_families

PYTHON = os.environ.get("LEONARDO_UPSTREAM_PYTHON", "")


def test_every_family_passes():
    checks = check_families([load_family(name) for name in family_names()], count=120)
    assert [check.faults for check in checks] == [[]] * len(checks)
    assert all(check.carried > 60 and check.refused > 3 and check.masks == 60 for check in checks)


def test_the_fuzz_reaches_what_is_awkward():
    commands = fuzzed_commands(200, seed=1)
    assert commands == fuzzed_commands(200, seed=1)
    assert commands != fuzzed_commands(200, seed=2)
    assert "" in commands
    assert max(map(len, commands)) >= 100_000


class Careless(Hermes):
    """Takes what was cut off, as lenient parsers do."""

    def parse(self, text: str, tools=()) -> ParsedTurn:
        return super().parse(text if text.endswith("</tool_call>") else f'{text}"}}}}</tool_call>', tools)


class Forgetful(Hermes):
    """Loses spaces at the end of a command."""

    def parse(self, text: str, tools=()) -> ParsedTurn:
        turn = super().parse(text, tools)
        return ParsedTurn(
            turn.thought, tuple(Call(c.name, {"command": c.arguments["command"].strip()}) for c in turn.calls)
        )

    def render(self, calls, tools=()) -> str:
        return self._write(calls, tools)


def test_a_careless_parser_is_found_out():
    refused, wrong = misread(Careless(), damaged_turns(Careless(), 50, seed=1))
    assert wrong
    assert refused


def test_a_lossy_format_is_found_out():
    trip = round_trip(Forgetful(), ["ls", "ls "])
    assert trip.carried == 1
    assert "'ls '" in trip.wrong[0]


def test_a_format_that_a_tokenizer_cannot_carry_is_found_out():
    assert round_trip(format_named("hermes"), ["echo é"], through=lambda text: text.replace("é", "e")).wrong


def test_differences_from_vllm_are_sorted():
    olmo3 = format_named("olmo3")
    turn = render_tool_call("ls", olmo3)
    ours = [["bash", {"command": "ls"}]]
    assert compare(olmo3, [turn, "text"], [ours, None], {}).same == 2
    assert compare(olmo3, [turn + "x"], [ours], {}).stricter == {"text after the call": 1}
    assert compare(olmo3, [turn], [None], {}).unexplained
    assert compare(olmo3, [turn], [[["bash", {"command": "rm"}]]], {}).unexplained
    assert compare(olmo3, [turn], [None], {"bash(": "a test"}).explained == {"a test": 1}


TOY = """\
name: toy
format: arrows
turns: toy.j2
results: {role: result}
tokens: {padding: "[pad]", ends: ["[end]"], control: ["[turn]"], pieces: ["-->"]}
architecture: {type: llama, layers: [full_attention]}
upstream: {parser: "vllm.tool_parsers.hermes_tool_parser:Hermes2ProToolParser"}
desk: {pieces: ["result: "]}
"""

TOY_TURNS = """\
{%- macro block(role, text) %}[turn]{{ role }}: {{ text }}[end]{% endmacro -%}
{%- for message in messages %}
{%- if message.role == 'system' %}{{ block('system', message.content ~ (listing(tools) if tools else '')) }}
{%- elif message.role == 'tool' %}{{ block(result_role, result_opens ~ message.content ~ result_closes) }}
{%- elif message.tool_calls %}{{ block('assistant', said(message)) }}
{%- else %}{{ block(message.role, message.content) }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '[turn]assistant: ' }}{% endif %}
"""


class Arrows(Hermes):
    """A format of a test: the Hermes object behind an arrow, to the end of the turn."""

    name = "arrows"
    tags = ("-->",)
    template = """\
{%- macro calls_text(calls) %}-->
{{- {'name': calls[0].function.name, 'arguments': calls[0].function.arguments} | tojson }}
{%- endmacro -%}
"""

    def _write(self, calls, tools) -> str:
        return (
            super()._write(calls, tools).removeprefix("<tool_call>\n").removesuffix("\n</tool_call>").join(["-->", ""])
        )

    def _read(self, text: str, tools) -> ParsedTurn:
        thought, _, rest = text.partition("-->")
        return super()._read(f"{thought}<tool_call>{rest}</tool_call>", tools)


def test_a_family_is_added_as_the_page_says(tmp_path: Path, monkeypatch):
    """docs/families.md, step by step: a format, a file of turns, a family file, and the check."""
    toy: ToolFormat = Arrows()
    monkeypatch.setitem(FORMATS, toy.name, toy)
    (tmp_path / "toy.j2").write_text(TOY_TURNS)
    (tmp_path / "toy.yaml").write_text(TOY)

    done = CliRunner().invoke(
        app, ["families", "check", str(tmp_path / "toy.yaml"), "--count", "120", "--out", str(tmp_path / "out")]
    )

    assert done.exit_code == 0, done.output
    assert (tmp_path / "out" / "families.json").is_file()
    (check,) = check_families([load_family(tmp_path / "toy.yaml")], count=120)
    assert check.faults == []
    assert check.carried > 60


def test_a_wrong_template_is_found_out(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(FORMATS, "arrows", Arrows())
    (tmp_path / "toy.j2").write_text(TOY_TURNS.replace("said(message)", "said(message) ~ ' '"))
    (tmp_path / "toy.yaml").write_text(TOY)
    (check,) = check_families([load_family(tmp_path / "toy.yaml")], count=40)
    assert any("not those of the rendered conversation" in fault for fault in check.faults)


def test_what_cannot_be_checked_is_one_line(tmp_path: Path):
    family = load_family("qwen3")
    with pytest.raises(InputError, match="no tokenizer"):
        check_families([family], count=1, tokenizers={"qwen3": tmp_path})
    for option, words in (("smollm2=/x", "that family is not checked"), ("qwen3", "names no folder")):
        with pytest.raises(InputError, match=words):
            check_command(["qwen3"], tmp_path / "out.json", seed=1, count=1, python=None, tokenizers=[option])
    with pytest.raises(InputError, match="is not there"):
        check_families([family], count=40, python=tmp_path / "python")


def test_a_model_file_gives_a_stage_its_familys_layers():
    stage = load_stage("calibrate").with_model(load_model("desk-olmo3"))
    shape = stage.warm_start_config().shape
    assert shape.layers == ("sliding_attention", "full_attention")
    assert set(shape.layers) == set(load_family(load_model("desk-olmo3").family).architecture.layers)


@pytest.mark.slow
@pytest.mark.skipif(not PYTHON, reason="LEONARDO_UPSTREAM_PYTHON names no Python with vLLM")
def test_our_parsers_agree_with_vllms():
    checks = check_families([load_family(name) for name in family_names()], count=300, python=Path(PYTHON))
    assert [check.faults for check in checks] == [[]] * len(checks)
    assert all(check.vllm is not None and check.vllm.same > 100 for check in checks)
