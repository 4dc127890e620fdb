"""Patch 0021 in upstream's own training function: the engines are watched from when they are ready."""

from typing import Any
from unittest import mock

import pytest

from leonardo.overlay.tree import Tree
from tests.upstream.parts import run_parts
from tests.upstream.test_sources import PACKAGE, Reached


def test_engines_are_watched(upstream: Tree, commit: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[tuple[Any, ...]] = []
    monkeypatch.setattr("leonardo.hooks.watch.watch_engines", lambda *arguments: watched.append(arguments))
    ray = mock.MagicMock()
    ray.get_actor.side_effect = Reached
    names = ("datasets", "snapshot_download", "torch", "logger", "time", "ray_get_with_progress", "data_loader_lib")
    space: dict[str, Any] = {name: mock.MagicMock() for name in names} | {"ray": ray}
    space["EnvConfig"] = mock.MagicMock()
    source = upstream.git("show", f"{commit[1]}:{PACKAGE}/grpo_fast.py")
    train = run_parts(source, {"run_training"}, space, "grpo_fast")["run_training"]
    given = {name: mock.MagicMock() for name in train.__code__.co_varnames[: train.__code__.co_argcount]}
    given |= {"resume_training_step": 1, "checkpoint_state": None}
    with pytest.raises(Reached):
        train(**given)
    expected = [(given["vllm_engines"], given["stop_event"])] if commit[0] == "patched" else []
    assert watched == expected
