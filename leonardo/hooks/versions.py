"""Libraries newer than those that upstream was written for."""

import importlib
from typing import Any


def begin_weight_update(actor: Any) -> None:
    """Tell the engine that weights are coming. vLLM 0.21 and later ask for it; earlier ones do without.

    Args:
        actor: upstream's rollout actor, its generation paused.
    """
    if hasattr(actor.llm_engine, "start_weight_update"):
        actor._run_async(actor.llm_engine.start_weight_update(is_checkpoint_format=True))
        actor.leonardo_weights_are_coming = True


def end_weight_update(actor: Any) -> None:
    """Tell the engine that all weights have come: it makes of them what its kernels use. May be called again."""
    if getattr(actor, "leonardo_weights_are_coming", False):
        actor.leonardo_weights_are_coming = False
        actor._run_async(actor.llm_engine.finish_weight_update())


def pickle_config_modules() -> None:
    """Let torch's configuration modules be pickled by their name, as modules are.

    From torch 2.11 on ``torch.distributed.config`` is one. Ray pickles upstream's trainer class by value, and with it
    every submodule of torch that its code may mean: "config" and "distributed" both occur in it.
    """
    try:
        from torch.utils._config_module import ConfigModule
    except ImportError:
        return
    ConfigModule.__reduce__ = _by_name  # type: ignore[method-assign]


def _by_name(module: Any) -> tuple[Any, tuple[str]]:
    return importlib.import_module, (module.__name__,)
