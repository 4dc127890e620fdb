"""Patch 0007 in upstream's own functions: models, data sets and task data by path, the cache's key by their content."""

import contextlib
import json
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

from leonardo.errors import InputError
from leonardo.overlay.tree import Tree
from tests.upstream.parts import run_parts

PACKAGE = "training/open-instruct/open_instruct"


@pytest.fixture
def parts(upstream: Tree, commit: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Parts of a module of upstream's, on a machine where the hub may not be asked."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("LEONARDO_SCRATCH", raising=False)

    def run(module: str, names: set[str], **space: Any) -> dict[str, Any]:
        return run_parts(upstream.git("show", f"{commit[1]}:{PACKAGE}/{module}.py"), names, space, module)

    return run


def refuse(*arguments: Any, **options: Any) -> Any:
    """Stands for the hub: it is not there."""
    raise OSError("the hub was asked")


def trainer(parts: Callable[..., dict[str, Any]], names: set[str], **space: Any) -> dict[str, Any]:
    """Parts of the trainer."""
    rest = {"torch": mock.MagicMock(), "snapshot_download": refuse, "datasets": mock.MagicMock()}
    return parts("grpo_fast", names, **{**rest, **space})


class Reached(Exception):
    """The trainer has come past its model."""


def start(parts: Callable[..., dict[str, Any]], model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Upstream's ``main`` up to where it makes the tokenizer. Returns the model's settings."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    config = types.SimpleNamespace(model_name_or_path=model, model_revision=None)
    reached = mock.Mock(side_effect=Reached)
    names = ("logger", "logging", "ray", "time")
    space = {name: mock.MagicMock() for name in names} | {"os": os, "make_tokenizer": reached}
    main = trainer(parts, {"main"}, **space)["main"]
    main = getattr(main, "__wrapped__", main)
    with pytest.raises(Reached):
        main(types.SimpleNamespace(), types.SimpleNamespace(), config, None, None, None)
    return config


def test_model_by_path(
    parts: Callable[..., dict[str, Any]], commit: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_text("")
    if commit[0] == "unpatched":
        with pytest.raises(OSError, match="the hub was asked"):
            start(parts, str(model), tmp_path, monkeypatch)
        return
    assert start(parts, str(model), tmp_path, monkeypatch).model_name_or_path == str(model)


def test_missing_model_is_named(
    parts: Callable[..., dict[str, Any]], commit: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error: type[Exception] = OSError if commit[0] == "unpatched" else InputError
    with pytest.raises(error, match="the hub was asked" if commit[0] == "unpatched" else "org/model is not on this"):
        start(parts, "org/model", tmp_path, monkeypatch)


@pytest.mark.parametrize("name", ["policy", "qwen3.5-tiny"])
def test_names_of_weights_do_not_hang_on_the_folders_name(
    parts: Callable[..., dict[str, Any]], commit: tuple[str, str], tmp_path: Path, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3_5", "text_config": {}}))
    mapper = trainer(parts, {"_build_vlm_name_mapper"})["_build_vlm_name_mapper"](str(folder))
    if commit[0] == "unpatched" and name == "policy":
        assert mapper is None
    else:
        assert mapper("model.norm.weight") == "language_model.model.norm.weight"


def test_tools_are_read_off_a_file_of_rows(
    parts: Callable[..., dict[str, Any]], commit: tuple[str, str], tmp_path: Path
) -> None:
    import datasets

    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"tools": ["swerl_vanillux_sandbox"]}) + "\n")
    library = types.SimpleNamespace(load_dataset=datasets.load_dataset)
    space = {"datasets": library, "TOOLS_COLUMN_KEY": "tools", "ENV_CONFIG_KEY": "env_config"}
    discover = trainer(parts, {"_discover_tools_from_datasets"}, **space)["_discover_tools_from_datasets"]
    if commit[0] == "unpatched":
        with pytest.raises(Exception, match=r"rows\.jsonl"):
            discover([str(path), "1.0"], ["train"])
    else:
        assert discover([str(path), "1.0"], ["train"]) == {"swerl_vanillux_sandbox"}


def test_changed_rows_are_not_taken_for_the_old(
    parts: Callable[..., dict[str, Any]], commit: tuple[str, str], tmp_path: Path
) -> None:
    import datasets

    space = {"dataclass": dataclass, "field": field, "os": os, "Any": Any, "Literal": Literal}
    space |= {"load_dataset": datasets.load_dataset, "Dataset": datasets.Dataset, "max_num_processes": lambda: 1}
    config_class = parts("dataset_transformation", {"DatasetConfig"}, **space)["DatasetConfig"]
    hashes = []
    for value in (1, 2):
        (tmp_path / "rows.jsonl").write_text(json.dumps({"value": value}) + "\n")
        hashes.append(config_class(str(tmp_path / "rows.jsonl"), "train", "main").dataset_commit_hash)
    if commit[0] == "unpatched":
        assert hashes == [None, None]
    else:
        assert None not in hashes and hashes[0] != hashes[1]


@pytest.mark.parametrize("module", ["swerl_sandbox", "swerl_vanillux_sandbox"])
@pytest.mark.parametrize("packed", [False, True])
def test_task_data_by_path(
    parts: Callable[..., dict[str, Any]], commit: tuple[str, str], tmp_path: Path, module: str, packed: bool
) -> None:
    (tmp_path / "t1").mkdir()
    (tmp_path / "t1" / "instruction.md").write_text("do it")
    if packed:
        with tarfile.open(tmp_path / "task-data.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "t1", "t1")
        shutil.rmtree(tmp_path / "t1")
    name = {"swerl_sandbox": "SWERLSandboxEnv", "swerl_vanillux_sandbox": "SWERLVanilluxSandboxEnv"}[module]
    space = {"os": os, "contextlib": contextlib, "shutil": shutil, "subprocess": subprocess, "time": time}
    space |= {"snapshot_download": refuse, "RLEnvironment": object, "_BASH_TOOL": {}, "logger": mock.MagicMock()}
    space |= {"VANILLUX_CALL_LIMIT": 1}
    resolve = parts(f"environments/{module}", {name}, **space)[name].resolve_task_data_dir
    if commit[0] == "unpatched":
        with pytest.raises(OSError, match="the hub was asked"):
            resolve(str(tmp_path))
        return
    found = Path(resolve(str(tmp_path)))
    assert (found / "t1" / "instruction.md").read_text() == "do it"
    with pytest.raises(InputError, match="org/data is not on this machine"):
        resolve("org/data")
