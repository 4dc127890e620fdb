"""What the policy is told: the system prompt, the instruction, the format error and the submit marker.

The semantics are those of upstream's vanillux harness (``environments/swerl_vanillux_sandbox.py``); the words are ours
and short, because every token costs a desk machine time.
"""

from leonardo.tasks.task import Task

SUBMIT_MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""A command whose output holds this submits the episode; the same marker as upstream's."""

SUBMIT_COMMAND = f"echo {SUBMIT_MARKER}"

SYSTEM_PROMPT = "Solve the task with bash, one call a turn."

BASH_TOOL = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command; folder and variables stay.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": "The command."}},
            "required": ["command"],
        },
    },
}
"""The one tool, in OpenAI's form."""

FORMAT_ERROR = "Format error: one bash call a turn."
"""What the policy is told when its turn holds no valid tool call."""


def messages_of(task: Task) -> list[dict[str, str]]:
    """The conversation that an episode of ``task`` begins with."""
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": task.instruction}]
