"""What runs in the processes of vLLM's engine, which import nothing of upstream's."""

from typing import Any

PROCESS_EXTENSION = "leonardo.hooks.engine_process.Extension"
"""vLLM imports it in each of its worker processes, as an extension of its worker class."""


def engine_hooks() -> dict[str, Any]:
    """Arguments of vLLM's engine by which its processes load :mod:`leonardo.hooks.engine_process`."""
    return {"worker_extension_cls": PROCESS_EXTENSION}
