"""Patch 0009 in upstream's own functions: a clean-up that fails, hangs or is fine, after runs of every kind.

Each trainer is a process of its own: upstream's ``main`` and clean-up with stand-ins for Ray and for the training.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from leonardo.overlay.tree import Tree
from tests.upstream.conftest import PROJECT
from tests.upstream.test_sources import PACKAGE
from tests.processes import running

TRAINER = """
import ast, asyncio, os, signal, sys, threading, time
from concurrent import futures
from pathlib import Path
from queue import Full
from types import SimpleNamespace
from unittest import mock
from leonardo.errors import InputError
from leonardo.hooks import shutdown
from tests.upstream.parts import run_parts

shutdown.TERM_SECONDS, shutdown.CLEANUP_SECONDS, shutdown.EXIT_SECONDS = 2.0, 1.5, 3.0
ray = mock.MagicMock()
ray.exceptions.RayError = RuntimeError
ray.is_initialized.return_value = False
names = ("datasets", "logger", "logging", "torch", "snapshot_download", "make_tokenizer", "setup_runtime_variables",
    "validate_configs", "patch_qwen3_5_packing", "initialize_tools_and_envs", "setup_datasets", "utils", "pprint",
    "ray_queue", "RewardConfig", "build_all_verifiers", "create_generation_configs", "build_base_env_config",
    "setup_experiment_tracking", "create_model_and_optimizer", "Queue", "data_loader_lib", "dist",
    "cleanup_judge_clients", "ShutdownSentinel", "run_training", "is_beaker_job", "push_folder_to_hub")
space = {name: mock.MagicMock() for name in names}
space |= {"ray": ray, "os": os, "threading": threading, "futures": futures, "time": time, "EXCLUDED_ENV_VARS": set()}
space["setup_experiment_tracking"].return_value = (None, None)
space["initialize_tools_and_envs"].return_value = ({}, [], [])
space["setup_datasets"].return_value = (range(1000), None)
space["create_model_and_optimizer"].return_value = (*(mock.MagicMock() for _ in range(7)), None)
space["is_beaker_job"].return_value = False
space["setup_runtime_variables"] = lambda args, *others: args
space["dist"].is_initialized.return_value = False
queue = space["ray_queue"].Queue.return_value
BODY
source = Path(sys.argv[1]).read_text()
main = run_parts(source, {"main", "cleanup_training_resources"}, space, "grpo_fast.py")["main"]
settings = mock.MagicMock()
settings.async_steps = settings.num_unique_prompts_rollout = settings.num_samples_per_prompt_rollout = 1
settings.push_to_hub = settings.cache_dataset_only = settings.verbose = settings.send_slack_alerts = False
settings.use_value_model = False
settings.value_model_name_or_path = settings.tokenizer_name_or_path = None
settings.model_name_or_path = str(Path(sys.argv[1]).parent / "model")
main(settings, settings, settings, settings, settings, settings)
"""

FULL = "queue.put.side_effect = Full"
FAIL = "space['run_training'].side_effect = RuntimeError('the cause')"
HANG = "ray.get.side_effect = lambda value: time.sleep(60)"
TERM = """
def terminated(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
space['run_training'].side_effect = terminated
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))  # Ray's own handler
"""


@pytest.fixture
def trainer(upstream: Tree, commit: tuple[str, str], tmp_path: Path) -> Path:
    """Upstream's trainer, unpatched or patched."""
    path = tmp_path / "grpo_fast.py"
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "model" / name).write_text("{}")
    path.write_text(upstream.git("show", f"{commit[1]}:{PACKAGE}/grpo_fast.py"))
    return path


def end_of(trainer: Path, body: str, patience: float) -> tuple[int | None, str]:
    """Exit code (None where it had to be killed after ``patience`` seconds) and stderr."""
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "HF_HUB_CACHE": str(trainer.parent)}
    with running(
        [sys.executable, "-c", TRAINER.replace("BODY", body), str(trainer)],
        stderr=subprocess.PIPE,
        env=environment,
        cwd=trainer.parent,
    ) as process:
        try:
            stderr = process.communicate(timeout=patience)[1]
        except subprocess.TimeoutExpired:
            process.kill()
            return None, process.communicate()[1]
    return process.returncode, stderr


@pytest.mark.parametrize(
    ("body", "unpatched", "patched"),
    [
        ("", 0, 0),
        (FULL, 1, 0),
        (FAIL, 1, 1),
        (f"{FAIL}\n{FULL}", 1, 1),
        (HANG, None, 0),
        (f"{FAIL}\n{HANG}", None, 1),
        (TERM, 15, 143),
        (f"{TERM}\n{HANG}", None, 143),
        ("space['run_training'].side_effect = InputError('bad row', 'mend it')", 1, 2),
    ],
    ids=[
        "well",
        "clean-up fails",
        "error",
        "error, clean-up fails",
        "clean-up hangs",
        "error, clean-up hangs",
        "SIGTERM",
        "SIGTERM, clean-up hangs",
        "bad input",
    ],
)
def test_exit_code(
    trainer: Path, commit: tuple[str, str], body: str, unpatched: int | None, patched: int | None
) -> None:
    expected = patched if commit[0] == "patched" else unpatched
    code, stderr = end_of(trainer, body, patience=6 if expected is None else 60)
    assert code == expected, stderr[-2000:]
    if body == f"{FAIL}\n{FULL}" and commit[0] == "patched":
        assert stderr.rstrip().endswith("RuntimeError: the cause")
    if "InputError" in body and commit[0] == "patched":
        assert stderr.rstrip().endswith("leonardo: bad row. mend it")
