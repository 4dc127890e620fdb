"""Tool-call formats: one module a format, one interface (:class:`ToolFormat`): render calls, parse a turn.

Parsers are total and strict: a turn is read as exactly what it says, or it is an error; never a guess.
"""

from leonardo.errors import InputError
from leonardo.rollout.formats.calls import Call, NoToolCallError, ParsedTurn, ToolCallError, ToolFormat, Tools
from leonardo.rollout.formats.hermes import Hermes
from leonardo.rollout.formats.llama3_json import Llama3Json
from leonardo.rollout.formats.olmo3 import Olmo3
from leonardo.rollout.formats.qwen3_xml import Qwen3Xml

__all__ = [
    "FORMATS",
    "QWEN3_XML",
    "Call",
    "NoToolCallError",
    "ParsedTurn",
    "ToolCallError",
    "ToolFormat",
    "Tools",
    "format_named",
]

QWEN3_XML = Qwen3Xml()

FORMATS: dict[str, ToolFormat] = {entry.name: entry for entry in (QWEN3_XML, Hermes(), Olmo3(), Llama3Json())}
"""All of them by name."""


def format_named(name: str) -> ToolFormat:
    """The format of this name. Raises InputError."""
    if name not in FORMATS:
        raise InputError(f"no tool-call format is called {name}", f"Known: {', '.join(FORMATS)}")
    return FORMATS[name]
