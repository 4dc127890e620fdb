"""Where a run of upstream's trainer writes: results below the run's folder, everything else in node-local scratch.

The engine names both: ``LEONARDO_RUN`` (shared between the nodes, kept) and ``LEONARDO_SCRATCH`` (node-local, short,
removed after the job). Where they are not set nothing is changed. What a person has set already is left as it is.
"""

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from leonardo.errors import InputError
from leonardo.hooks.shutdown import one_line

RUN = "LEONARDO_RUN"
SCRATCH = "LEONARDO_SCRATCH"

LONGEST_SCRATCH = 38
"""Bytes. Ray's sockets lie 69 bytes below (/ray/session_<date>_<time>_<microseconds>_<pid>/sockets/plasma_store), and
Linux takes 107."""

_IN_SCRATCH = {
    "CUDA_CACHE_PATH": "cuda",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "HF_MODULES_CACHE": "modules",
    "MPLCONFIGDIR": "matplotlib",
    "NUMBA_CACHE_DIR": "numba",
    "RAY_TMPDIR": "",
    "SWERL_DOCKER_LOCK_DIR": "locks",
    "TMPDIR": "",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "extensions",
    "TRITON_CACHE_DIR": "triton",
    "VLLM_CACHE_ROOT": "vllm",
    "VLLM_CONFIG_ROOT": "vllm-config",
    "VLLM_RPC_BASE_PATH": "",
    "WANDB_CACHE_DIR": "wandb-cache",
    "WANDB_DATA_DIR": "wandb-data",
}
"""Variables of the libraries that upstream uses, and the folder in scratch that each is set to.

They hold on every node, and only the scratch folder itself is sure to be there on all (Ray makes it): the libraries
make the others where they need them, but not those for temporary files and sockets.
"""

_IN_RUN = {"WANDB_DIR": ""}

_SETTINGS = {
    "rollouts_save_path": ("/weka/oe-adapt-default/allennlp/deletable_rollouts/", RUN, "rollouts"),
    "dataset_local_cache_dir": ("local_dataset_cache", SCRATCH, "transformed"),
    "output_dir": ("output/", RUN, "output"),
}
"""Upstream's settings that name a folder: its default, and where the folder lies instead."""


def use_run_folders() -> None:
    """Set the variables that name caches and temporary folders. To be called before the libraries are imported.

    Ends the process, with one line, where the scratch folder's name is too long for sockets or cannot be made.
    """
    with one_line():
        set_variables(os.environ)


def set_variables(environment: MutableMapping[str, str]) -> None:
    """What :func:`use_run_folders` does, in ``environment``. Raises InputError."""
    for variable, names in ((SCRATCH, _IN_SCRATCH), (RUN, _IN_RUN)):
        folder = environment.get(variable)
        if not folder:
            continue
        _check(variable, folder)
        for name, below in names.items():
            environment.setdefault(name, str(Path(folder, below)))
        _make(Path(folder))


def follow_run(config: Any) -> None:
    """Let the folders in upstream's settings lie where the run's do, where they are still upstream's defaults."""
    for name, (default, variable, below) in _SETTINGS.items():
        folder = os.environ.get(variable)
        if folder and getattr(config, name, None) == default:
            setattr(config, name, str(Path(folder, below)))


def job_barrier(path: str) -> str:
    """The file that tells the other nodes that the model is there: this job's, so that no earlier one's is seen."""
    folder = os.environ.get(RUN)
    if not folder:
        return path
    job, restart = os.environ.get("SLURM_JOB_ID", "local"), os.environ.get("SLURM_RESTART_COUNT", "0")
    barrier = Path(folder, "barriers", f"model-{job}-{restart}")
    _make(barrier.parent)
    return str(barrier)


def extraction_folder(path: str) -> str:
    """Where task data are unpacked: ``path`` lies beside the archive, which may be read-only or on a shared disk."""
    folder = os.environ.get(SCRATCH)
    if not folder:
        return path
    from leonardo.files import sha256_bytes

    _make(Path(folder, "task-data"))
    return str(Path(folder, "task-data", sha256_bytes(os.path.realpath(path).encode())[:16]))


def _check(variable: str, folder: str) -> None:
    if not Path(folder).is_absolute():
        raise InputError(f"{variable} is {folder}, which depends on where a process starts", "Name an absolute path")
    if variable == SCRATCH and len(os.fsencode(folder)) > LONGEST_SCRATCH:
        raise InputError(
            f"{SCRATCH} is {folder}, {len(os.fsencode(folder))} bytes long: sockets in it would have too long names",
            f"Name a node-local folder of at most {LONGEST_SCRATCH} bytes, such as /tmp/<job>",
        )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder} cannot be made ({error.strerror})", f"Check {RUN} and {SCRATCH}") from error
