"""Whether our parsers read what vLLM's do: the same turns through both, and every difference accounted for.

The desk engine parses with ours and upstream's trainer with vLLM's; a turn that both take must be the same calls. Ours
may refuse more: a refused turn is a format error, which the policy is told of.
"""

import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.rollout.formats import Call, ToolCallError, ToolFormat, Tools
from leonardo.rollout.prompts import BASH_TOOL

_READER = Path(__file__).with_name("vllmreader.py")
_PATIENCE = 900.0

_PARAMETERS = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "share": {"type": "number"},
    "exact": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string"}},
    "more": {"type": "object"},
}

TOOLS: Tools = (
    BASH_TOOL,
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "What the weather will be.",
            "parameters": {"type": "object", "properties": _PARAMETERS},
        },
    },
)
"""The terminal's tool, and one whose parameters are of every type."""

TYPED_CALLS: Sequence[Sequence[Call]] = (
    [Call("weather", {})],
    [Call("weather", {"city": "Köln", "days": 3})],
    [Call("weather", {"city": "3", "exact": True})],
    [Call("weather", {"city": "true"}), Call("weather", {"city": "New York, NY"})],
    [Call("weather", {"share": 0.25, "exact": False})],
    [Call("weather", {"days": -3})],
    [Call("weather", {"tags": []}), Call("bash", {"command": "ls"})],
    [Call("weather", {"tags": ["a", "b, c", 'd"e'], "more": {"x": [1, 2.5, {"y": "z"}], "deep": {"er": True}}})],
)
"""Calls with arguments of every type, single and several."""


@dataclass(frozen=True)
class Question:
    """Turns for one of vLLM's parsers: ``parser`` as ``module:Class``, ``tokenizer`` a folder."""

    parser: str
    tokenizer: Path
    turns: Sequence[str]


@dataclass
class Agreement:
    """What a comparison found.

    Attributes:
        same: turns that both read alike, or neither.
        stricter: our reasons for refusing what vLLM takes, and how often.
        explained: differences that the family file names, and how often.
        unexplained: turns that differ otherwise; there must be none.
    """

    same: int = 0
    stricter: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)


def ask_vllm(python: Path, questions: Sequence[Question]) -> list[list[Any]]:
    """What vLLM's parsers make of the turns: for each its calls as ``[[name, arguments], ...]``, or None.

    Args:
        python: of an environment with vLLM, upstream's for one.
        questions: all that is asked; vLLM is imported once.

    Raises:
        InputError: there is no such Python, or no vLLM in it.
        InfrastructureError: it did not answer.
    """
    if not python.is_file():
        raise InputError(
            f"{python} is not there", "Name the Python of upstream's environment: LEONARDO_UPSTREAM_PYTHON"
        )
    lines = [
        json.dumps({"parser": one.parser, "tokenizer": str(one.tokenizer), "tools": TOOLS, "turns": one.turns})
        for one in questions
    ]
    own = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    with tempfile.TemporaryDirectory(prefix="leonardo-vllm-") as scratch:
        answers = Path(scratch) / "answers.jsonl"
        try:
            # -P: the reader's folder holds modules of names that Python has, too
            ended = subprocess.run(
                [python, "-P", _READER, answers],
                input="\n".join(lines),
                text=True,
                capture_output=True,
                timeout=_PATIENCE,
                env=own | {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"},
            )
        except subprocess.TimeoutExpired as error:
            raise InfrastructureError(
                f"vLLM's parsers gave no answer within {_PATIENCE:.0f} s", "Try again", FailureClass.RUNTIME
            ) from error
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["no word"])[-1]
            raise InputError(
                f"{python} could not read with vLLM's parsers ({last[:200]})", "Make it: make upstream-env"
            )
        return [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]


def compare(
    tool_format: ToolFormat, turns: Sequence[str], answers: Sequence[Any], known: Mapping[str, str]
) -> Agreement:
    """Hold our reading of each turn against vLLM's.

    Args:
        tool_format: ours.
        turns: what was read.
        answers: what vLLM made of each.
        known: text that a turn holds -> why vLLM reads such a turn otherwise.
    """
    result = Agreement()
    for turn, theirs in zip(turns, answers, strict=True):
        reason, ours = "", None
        try:
            ours = [[call.name, call.arguments] for call in tool_format.parse(turn, TOOLS).calls]
        except ToolCallError as error:
            reason = str(error).partition(":")[0]
        if json.dumps(ours) == json.dumps(theirs):
            result.same += 1
        elif ours is None:
            result.stricter[reason] += 1
        elif why := next((why for text, why in known.items() if text in turn), ""):
            result.explained[why] += 1
        else:
            result.unexplained.append(f"{turn[:160]!r}: vLLM reads {str(theirs)[:160]}")
    return result
