"""vLLM's engine runs in processes of its own, which import nothing of upstream's: how they come to load the hooks.

The actor starts a core process, which starts a process for each worker (or is the only one itself).
"""

import os
import sys
import threading
import time
from typing import Any

from leonardo.hooks.shutdown import die_with_parent

PROCESS_EXTENSION = "leonardo.hooks.engine_process.Extension"
"""vLLM imports it in each process that holds a worker, as an extension of its worker class."""

_VLLMS = "run_before_leonardo"

_LOOK = 2.0
"""Seconds between looks at an engine."""

_GRACE = 15.0
"""Seconds that an actor whose engine is dead has for saying so itself, with the cause."""


def engine_hooks() -> dict[str, Any]:
    """Arguments of vLLM's engine by which its workers load :mod:`leonardo.hooks.engine_process`."""
    return {"worker_extension_cls": PROCESS_EXTENSION}


def tie_engine() -> None:
    """Have the core processes of engines that this process starts from now on end with it, however it ends."""
    from vllm.v1.engine.core import EngineCoreProc

    if not hasattr(EngineCoreProc, _VLLMS):
        setattr(EngineCoreProc, _VLLMS, staticmethod(EngineCoreProc.run_engine_core))
        EngineCoreProc.run_engine_core = staticmethod(run_engine_core)


def run_engine_core(*arguments: Any, **options: Any) -> None:
    """What a core process runs: vLLM's own function, tied to the process that started it."""
    die_with_parent()
    from vllm.v1.engine.core import EngineCoreProc

    # a process that was forked has the class as it is above, one that was spawned as vLLM has it
    getattr(EngineCoreProc, _VLLMS, EngineCoreProc.run_engine_core)(*arguments, **options)


def end_with_engine(engine: Any, look: float = _LOOK, grace: float = _GRACE) -> None:
    """Have this process, a rollout actor's, end once its engine is dead.

    The actor's one thread for calls may wait for an answer of the engine that never comes (to pause it before new
    weights, for example), and is then asked in vain whether all is well. Ray tells of a process that ends.

    Args:
        engine: vLLM's asynchronous engine.
        look, grace: seconds between looks, and between the engine's death and the actor's.
    """

    def watch() -> None:
        while not engine.errored:
            time.sleep(look)
        time.sleep(grace)
        print("leonardo: the rollout engine is dead, so its actor ends", file=sys.stderr, flush=True)
        os._exit(1)

    threading.Thread(target=watch, name="leonardo-engine", daemon=True).start()
