"""A policy that says what it is told to, for tests of the rollout loop."""

from collections.abc import Sequence

from leonardo.rollout.episode import Messages
from leonardo.rollout.episodes import Generation
from leonardo.rollout.formats import QWEN3_XML, Tools
from leonardo.rollout.prompts import SUBMIT_COMMAND
from leonardo.rollout.tool_calls import render_tool_call

END = 0
UNFINISHED = "never ends"


class ScriptedPolicy:
    """Says ``script[turn]`` in every episode. A token is a character's code point; 0 ends a turn."""

    tool_format = QWEN3_XML

    def __init__(self, script: Sequence[str]) -> None:
        self.script = script
        self.seeds: list[tuple[int, int]] = []

    def prompt(self, messages: Messages, tools: Tools = ()) -> list[int]:
        return [ord(c) for message in messages for c in message["content"]]

    def observation(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    request = observation

    def text(self, tokens: Sequence[int]) -> str:
        return "".join(chr(token) for token in tokens if token != END)

    def generate(
        self, contexts: Sequence[Sequence[int]], seeds: Sequence[tuple[int, int]], limit: int
    ) -> list[Generation]:
        self.seeds += seeds
        turns = [self.script[turn] for _, turn in seeds]
        return [
            Generation([*map(ord, turn), END], [-0.5] * (len(turn) + 1), 0.25, turn != UNFINISHED) for turn in turns
        ]


def calls(*commands: str) -> list[str]:
    """A script of bash calls that ends with the submission."""
    return [render_tool_call(command) for command in (*commands, SUBMIT_COMMAND)]
