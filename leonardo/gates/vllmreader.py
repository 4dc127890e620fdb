"""Read turns with vLLM's own parsers. Runs in upstream's Python, by its path, and imports nothing of this project.

Standard input: one JSON object a line, ``{"parser": "module:Class", "tokenizer": folder, "tools": [...], "turns":
[...]}``. The file that the first argument names gets one line for each: a list with, for every turn, its calls as
``[[name, arguments], ...]``, or null where vLLM sees none.
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer every line."""
    from transformers import AutoTokenizer
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    answers = []
    for line in sys.stdin:
        asked = json.loads(line)
        module, _, name = asked["parser"].partition(":")
        kind = getattr(importlib.import_module(module), name)
        request = ChatCompletionRequest(model="any", messages=[], tools=asked["tools"])
        parser = kind(AutoTokenizer.from_pretrained(asked["tokenizer"]), request.tools)
        answers.append([_calls(parser, turn, request) for turn in asked["turns"]])
    Path(sys.argv[1]).write_text("".join(f"{json.dumps(answer)}\n" for answer in answers), encoding="utf-8")


def _calls(parser: Any, turn: str, request: Any) -> list[list[Any]] | None:
    found = parser.extract_tool_calls(turn, request)
    if not found.tools_called:
        return None
    calls = []
    for call in found.tool_calls:
        try:
            calls.append([call.function.name, json.loads(call.function.arguments)])
        except ValueError:
            calls.append([call.function.name, None])
    return calls


if __name__ == "__main__":
    main()
