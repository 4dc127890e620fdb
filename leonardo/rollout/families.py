"""Model families as data: ``launch/families/*.yaml``, with the chat templates that are put together for them.

A family's chat template is ours. It is made of four parts, so that none is written twice: how the format writes calls
(with the format, in Python), how tools are listed (``launch/families/listings``), how turns are marked
(``launch/families/turns``), and the family's own settings.
"""

import json
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Literal

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment
from pydantic import Field, PrivateAttr

from leonardo.errors import InputError
from leonardo.files import digest_of
from leonardo.rollout.formats import ToolFormat, format_named
from leonardo.settings import Settings, find_settings, read_settings

Listing = Literal["brief", "json"]
"""How tools are shown: by their names alone, or with all that is declared of them."""

REFERENCE = "qwen3.5"
"""The family of the reference models; of a policy that does not name its own, too."""

# Text before calls stands on lines of its own, so that what a parser returns is rendered as it was said.
_SAID = """\
{%- macro said(message) %}
{{- message.content ~ '\\n' if message.content else '' }}{{ calls_text(message.tool_calls) }}
{%- endmacro -%}
"""


class Results(Settings):
    """How a tool's result is shown: the role of its message, and what stands around the result in it."""

    role: str
    opens: str = ""
    closes: str = ""


class Tokens(Settings):
    """Tokens that mean something.

    Attributes:
        padding: fills up a batch.
        ends: end a turn, where the model samples them; the first is the one that the template writes.
        control: others that mark turns; what a command prints never becomes one.
        pieces: parts of the format that are one token each, and text all the same.
    """

    padding: str
    ends: tuple[str, ...] = Field(min_length=1)
    control: tuple[str, ...] = ()
    pieces: tuple[str, ...] = ()


class Architecture(Settings):
    """What the models are built of.

    Attributes:
        type: transformers' name of it.
        layers: the kinds of attention, layer by layer; they repeat.
        settings: of transformers' configuration class, where they differ from its defaults.
    """

    type: str
    layers: tuple[str, ...]
    settings: dict[str, Any] = {}


class Upstream(Settings):
    """How upstream's engine reads the family's turns.

    Attributes:
        parser: vLLM's parser of the format, ``module:Class``.
        differences: text that a turn may hold -> why vLLM's parser reads such a turn otherwise than ours.
    """

    parser: str
    differences: dict[str, str] = {}


class Desk(Settings):
    """What a policy of the family is like at desk size.

    Attributes:
        pieces: text that is one token each in its tokenizer, so that a turn is mostly its command.
        settings: of transformers' configuration class, over those of the architecture.
    """

    pieces: tuple[str, ...] = ()
    settings: dict[str, Any] = {}


class Family(Settings):
    """A family file.

    Attributes:
        name: of the family.
        format: name of the tool-call format (:mod:`leonardo.rollout.formats`).
        turns: how turns are marked: a name in ``launch/families/turns``, or a .j2 file beside the family file.
        results, tokens, architecture, upstream, desk: see the classes.
    """

    name: str
    format: str
    turns: str
    results: Results
    tokens: Tokens
    architecture: Architecture
    upstream: Upstream
    desk: Desk = Desk()
    _turns: str = PrivateAttr("")

    @property
    def tool_format(self) -> ToolFormat:
        """The tool-call format."""
        return format_named(self.format)

    def chat_template(self, listing: Listing) -> str:
        """The chat template, for a tokenizer."""
        settings = {
            "result_role": self.results.role,
            "result_opens": self.results.opens,
            "result_closes": self.results.closes,
        }
        parts = [f"{{%- set {name} = {json.dumps(value)} -%}}\n" for name, value in settings.items()]
        parts += [self.tool_format.template, _SAID, _text(f"listings/{listing}.j2"), self._turns]
        return "".join(parts)

    def upstream_entry(self, listing: Listing) -> dict[str, Any]:
        """Upstream's entry for the family with our chat template (see :mod:`leonardo.hooks.parsers`)."""
        frame = message_frame(self.chat_template(listing), self.tokens.ends[0])
        opens, closes = (text.replace("{", "{{").replace("}", "}}") for text in (frame.opens, frame.closes))
        shown = f"{opens}{{output}}{closes}"
        return {
            "import_path": self.upstream.parser,
            "role_templates": {"tool": shown, "user": shown},
            "output_prefix": frame.before,
            "output_postfix": frame.after,
        }

    @property
    def digest(self) -> str:
        """Names all of it, the template included."""
        return digest_of([self.model_dump(mode="json"), self.chat_template("brief"), self.chat_template("json")])


def load_family(name: str | Path) -> Family:
    """Read a family: a name in ``launch/families`` or a path. Raises InputError that names file and setting."""
    path = find_settings(name, "families")
    family = read_settings(path, Family)
    format_named(family.format)
    turns = path.parent / family.turns if family.turns.endswith(".j2") else _FOLDER / "turns" / f"{family.turns}.j2"
    if not turns.is_file():
        raise InputError(f"{path}: turns: {turns.name} is not there", "Write it; the others are in launch/families")
    family._turns = turns.read_text(encoding="utf-8")
    return family


def family_names() -> list[str]:
    """The families that are shipped."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def render_chat(
    template: str,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None = None,
    *,
    opens_turn: bool = False,
) -> str:
    """A conversation by a chat template, as transformers renders it.

    Args:
        template: of a :class:`Family` or a tokenizer.
        messages: in OpenAI's form, with a call's arguments as an object.
        tools: that are listed.
        opens_turn: whether the model's turn is opened at the end.
    """
    return _compiled(template).render(messages=messages, tools=tools, add_generation_prompt=opens_turn)


@lru_cache(maxsize=32)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(template)


@dataclass(frozen=True)
class MessageFrame:
    """What a chat template writes between two turns of a model.

    Attributes:
        before: what follows the token that ends the first, before any message.
        opens, closes: around the text of each message.
        after: behind the last, up to where the model goes on.
    """

    before: str
    opens: str
    closes: str
    after: str


def message_frame(template: str, end: str, role: str = "tool") -> MessageFrame:
    """What ``template`` writes around messages of ``role`` behind a turn that ends with ``end``.

    Found by rendering one such message, and two.
    """
    said, shown = "-said-", "-shown-"
    turn = [{"role": "user", "content": ""}, {"role": "assistant", "content": said}]
    message = {"role": role, "content": shown}

    def rendered(messages: int, opens_turn: bool = False) -> str:
        whole = render_chat(template, [*turn, *[message] * messages], None, opens_turn=opens_turn)
        return whole.partition(said)[2].removeprefix(end)

    one = rendered(1)
    block = rendered(2)[len(one) :]
    opens, _, closes = block.partition(shown)
    return MessageFrame(one[: len(one) - len(block)], opens, closes, rendered(1, opens_turn=True)[len(one) :])


_FOLDER = Path(__file__).parents[2] / "launch" / "families"


@cache
def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")
