"""Whether the response mask of a conversation covers the policy's tokens and nothing else, by another way to it."""

from collections.abc import Sequence
from itertools import groupby

from leonardo.engine.desk.demonstrations import Demonstration
from leonardo.engine.desk.dialogue import Dialogue
from leonardo.rollout.families import render_chat
from leonardo.rollout.formats import Call
from leonardo.rollout.prompts import BASH_TOOL
from leonardo.rollout.tool_calls import render_tool_call


def mask_error(dialogue: Dialogue, instruction: str, turns: Sequence[tuple[str, str]]) -> str:
    """What is wrong with the tokens and the mask of a conversation, in a sentence; nothing where all is right.

    The text is rendered by the chat template from calls and results as messages; the tokens are put together as in a
    rollout. Their text has to be the same, and the masked runs of it exactly what the policy said, turn by turn, with
    the token that ends it.

    Args:
        dialogue: of the family's tokenizer.
        instruction: what the user says.
        turns: (command, observation); the last one's observation is not shown.
    """
    opening = [{"role": "system", "content": "Solve it."}, {"role": "user", "content": instruction}]
    said = [render_tool_call(command, dialogue.tool_format) for command, _ in turns]
    shown = [observation for _, observation in turns]
    tokens, mask = Demonstration(opening, tuple(zip(said, shown, strict=True)), right=True).tokens(dialogue)

    messages: list[dict[str, object]] = [*opening]
    for command, observation in turns:
        messages += [_as_message(Call("bash", {"command": command})), {"role": "tool", "content": observation}]
    whole = render_chat(str(dialogue.tokenizer.chat_template), messages[:-1], [BASH_TOOL])

    runs = [(own, [token for _, token in run]) for own, run in groupby(zip(mask, tokens, strict=True), lambda x: x[0])]
    text = [(own, dialogue.tokenizer.decode(part, skip_special_tokens=False)) for own, part in runs]
    end = dialogue.tokenizer.eos_token
    if not whole.startswith("".join(part for _, part in text)):
        return "the tokens are not those of the rendered conversation"
    if [part for own, part in text if own] != [f"{call}{end}" for call in said]:
        return "the masked tokens are not what the policy said"
    return ""


def _as_message(call: Call) -> dict[str, object]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]}
