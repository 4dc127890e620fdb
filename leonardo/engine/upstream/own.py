"""What every run of upstream's trainer is given, on the desk and in a job, beside the flags of stage, model and site.

Where everything is, the bounds of an episode, the tool-call parser, and that nothing is sent anywhere. What stands here
is refused in stage, model and site files, so that none believes to have set it.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from leonardo.engine.upstream.dataset import ENVIRONMENT, Dataset
from leonardo.engine.upstream.flags import PACKAGE
from leonardo.errors import InputError
from leonardo.hooks.parsers import VARIABLE as PARSERS_VARIABLE
from leonardo.hooks.paths import RUN as RUN_VARIABLE
from leonardo.rollout.episode import EpisodeSettings

PARSERS, STATE, CHECKPOINT = "parsers.json", "state", "checkpoint"
"""In a run's folder: the model's own parsers, the trainer's state to go on from, and the models it saves."""

_LONGEST_COMPILATION = 900.0
"""Seconds after which a lock on a compilation is taken to be left over."""


def own_flags(
    model: Path, dataset: Dataset, folder: Path, episode: EpisodeSettings, seed: int, parser: str, *, state: bool
) -> dict[str, Any]:
    """The flags that are set here and nowhere else.

    Args:
        model: the checkpoint to begin with.
        folder: of the run.
        parser: of tool calls, one of upstream's list or of the run's ``parsers.json``.
        state: whether the trainer's state is saved (and gone on with where there is one); upstream wants no folder
            for it otherwise.
    """
    return {
        "model_name_or_path": str(model),
        "dataset_mixer_list": [str(dataset.folder), "1.0"],
        "dataset_mixer_list_splits": ["train"],
        "tools": [ENVIRONMENT],
        "tool_configs": [
            {
                "backend": "prepared",
                "task_data_dir": str(dataset.task_data),
                "timeout": round(episode.command_timeout),
                "test_timeout": round(episode.verifier_timeout),
                "tool_call_format_error_feedback": True,
            }
        ],
        "tool_parser_type": parser,
        "system_prompt_override_file": str(dataset.system_prompt),
        "output_dir": str(folder / CHECKPOINT),
        "checkpoint_state_dir": str(folder / STATE) if state else None,
        "rollouts_save_path": str(folder / "rollouts"),
        "dataset_local_cache_dir": str(folder / "dataset-cache"),
        "seed": seed,
        "exp_name": "run",
        "max_steps": episode.steps,
        "per_turn_max_tokens": episode.turn_tokens,
        "push_to_hub": False,
        "with_tracking": False,
        "try_auto_save_to_beaker": False,
        "try_launch_beaker_eval_jobs_on_weka": False,
    }


_NOWHERE = Path()
OWN = frozenset(
    own_flags(_NOWHERE, Dataset(_NOWHERE, _NOWHERE, _NOWHERE), _NOWHERE, EpisodeSettings(), 0, "", state=False)
)
"""Their names."""


def require_not_own(flags: Mapping[str, Any]) -> None:
    """Raises InputError where ``flags``, of stage, model and site, hold one that is set here."""
    if own := sorted(OWN & set(flags)):
        raise InputError(f"{', '.join(own)} is set by the engine adapter", "Remove it from the stage or model file")


def saves_state(flags: Mapping[str, Any]) -> bool:
    """Whether the trainer is to save its state now and then."""
    frequency = flags.get("checkpoint_state_freq")
    return isinstance(frequency, int) and frequency > 0


def own_environment(
    tree: Path, project: Path, folder: Path, compiled: Path, environment: Mapping[str, str]
) -> dict[str, str]:
    """The variables of Ray, the trainer and all that they start.

    Args:
        tree: upstream's checkout; ``project``: this project's.
        folder: of the run.
        compiled: folder for what torch and vLLM compile: it serves later runs. Everything else that is kept on the way
            goes where ``LEONARDO_SCRATCH`` says.
        environment: the site's, which these are added to.
    """
    modules = (str(tree / PACKAGE.parent), str(project), environment.get("PYTHONPATH", ""))
    return {
        **environment,
        "PYTHONPATH": ":".join(filter(None, modules)),
        "PYTHONUNBUFFERED": "1",
        "TORCH_EXTENSIONS_DIR": str(extensions(compiled)),
        "VLLM_CACHE_ROOT": str(compiled / "vllm"),
        RUN_VARIABLE: str(folder),
        PARSERS_VARIABLE: str(folder / PARSERS),
        "HF_HOME": str(folder / "hub"),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def extensions(compiled: Path) -> Path:
    """Where torch's are, in the folder of what is compiled."""
    return compiled / "torch"


def remove_stale_locks(place: Path) -> None:
    """A compilation that was killed leaves its lock, for which the next one would wait for ever.

    Args:
        place: of torch's extensions, ``TORCH_EXTENSIONS_DIR``.
    """
    for lock in place.glob("**/lock"):
        with suppress(FileNotFoundError):  # another node's processes look, too
            if time.time() - lock.stat().st_mtime > _LONGEST_COMPILATION:
                lock.unlink()
