"""Patch 0008 in upstream's own functions and settings: what is written, and where."""

import contextlib
import enum
import os
import shutil
import subprocess
import tarfile
import time
import types
import unittest.mock as mock
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from leonardo.hooks import paths
from leonardo.overlay.tree import Tree
from tests.upstream.parts import run_parts
from tests.upstream.test_sources import PACKAGE, Reached


@pytest.fixture
def parts(
    upstream: Tree, commit: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Parts of a module of upstream's, in a run with folders of its own."""
    monkeypatch.setattr(paths, "LONGEST_SCRATCH", 4096)
    monkeypatch.setenv(paths.RUN, str(tmp_path / "run"))
    monkeypatch.setenv(paths.SCRATCH, str(tmp_path / "scratch"))
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(paths, "set_variables", lambda environment: None)  # of this process: not in a test

    def run(module: str, names: set[str], **space: Any) -> dict[str, Any]:
        return run_parts(upstream.git("show", f"{commit[1]}:{PACKAGE}/{module}.py"), names, space, module)

    return run


def test_defaults_of_the_settings(
    parts: Callable[..., dict[str, Any]], commit: tuple[str, str], tmp_path: Path
) -> None:
    space = {"dataclass": dataclass, "field": field, "os": os, "Literal": Literal, "Any": Any}
    space |= {"logger": mock.MagicMock(), "Path": Path, "enum": enum}
    streaming = parts("data_loader", {"StreamingDataLoaderConfig"}, **space)["StreamingDataLoaderConfig"]
    bases = {"ExperimentConfig", "TrainingConfig", "LoggingConfig", "CheckpointConfig"}
    space["olmo_core_utils"] = types.SimpleNamespace(**parts("olmo_core_utils", bases, **space))
    names = {"GRPOExperimentConfig", "GRPOLossType", "DPPODivergenceType"}
    experiment = parts("grpo_utils", names, **space)["GRPOExperimentConfig"]
    follows = commit[0] == "patched"
    assert (streaming().rollouts_save_path == str(tmp_path / "run" / "rollouts")) == follows
    assert (streaming().dataset_local_cache_dir == str(tmp_path / "scratch" / "transformed")) == follows
    assert (experiment().output_dir == str(tmp_path / "run" / "output")) == follows
    assert streaming(rollouts_save_path="/elsewhere").rollouts_save_path == "/elsewhere"
    assert experiment(output_dir="/elsewhere").output_dir == "/elsewhere"


def test_barrier_of_this_job(parts: Callable[..., dict[str, Any]], commit: tuple[str, str], tmp_path: Path) -> None:
    """The folder of the hub's cache need not be there, and no earlier job's file is seen."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_text("")
    opened: list[str] = []
    space = {name: mock.MagicMock() for name in ("logger", "logging", "ray", "time", "torch", "datasets")}
    space |= {"os": os, "make_tokenizer": mock.Mock(side_effect=Reached)}
    space |= {"open": lambda path, mode: (opened.append(path), mock.MagicMock())[1]}
    main = parts("grpo_fast", {"main"}, snapshot_download=lambda name, **options: name, **space)["main"]
    main = getattr(main, "__wrapped__", main)
    config = types.SimpleNamespace(model_name_or_path=str(model), model_revision=None)
    with pytest.raises(Reached):
        main(types.SimpleNamespace(), types.SimpleNamespace(), config, None, None, None)
    if commit[0] == "unpatched":
        assert opened[0].endswith("_local")
    else:
        assert opened == [str(tmp_path / "run" / "barriers" / "model-17-0")]


@pytest.mark.parametrize("module", ["swerl_sandbox", "swerl_vanillux_sandbox"])
def test_task_data_are_unpacked_in_scratch(
    parts: Callable[..., dict[str, Any]], commit: tuple[str, str], tmp_path: Path, module: str
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "instruction.md").write_text("do it")
    with tarfile.open(shared / "task-data.tar.gz", "w:gz") as archive:
        archive.add(shared / "instruction.md", "instruction.md")
    name = {"swerl_sandbox": "SWERLSandboxEnv", "swerl_vanillux_sandbox": "SWERLVanilluxSandboxEnv"}[module]
    space = {"os": os, "contextlib": contextlib, "shutil": shutil, "subprocess": subprocess, "time": time}
    space |= {"snapshot_download": lambda name, **options: name, "RLEnvironment": object, "_BASH_TOOL": {}}
    space |= {"logger": mock.MagicMock(), "VANILLUX_CALL_LIMIT": 1}
    resolve = parts(f"environments/{module}", {name}, **space)[name].resolve_task_data_dir
    before = sorted(path.name for path in shared.iterdir())
    found = Path(resolve(str(shared)))
    assert (found / "instruction.md").read_text() == "do it"
    assert found.is_relative_to(tmp_path / "scratch" if commit[0] == "patched" else shared)
    assert resolve(str(shared)) == str(found)  # unpacked once
    if commit[0] == "patched":
        assert sorted(path.name for path in shared.iterdir()) == before


def test_variables_are_set_before_the_libraries_are_imported(upstream: Tree, commit: tuple[str, str]) -> None:
    source = upstream.git("show", f"{commit[1]}:{PACKAGE}/grpo_fast.py")
    if commit[0] == "patched":
        assert source.index("\nuse_run_folders()\n") < source.index("import deepspeed")
