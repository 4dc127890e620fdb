"""Checkpoints of the desk learner: what a killed run goes on from, so that it ends as if it had not been killed.

A checkpoint is one file, whole or absent, whose name holds its step and the digest of its content. One that is not what
its name says is set aside, and the one before it is used.
"""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from leonardo.files import sha256_bytes, write_atomic

KEPT = 2
"""The newest one, and one to fall back to."""

_NAME = "step-{step:06d}-{digest}.pt"
_PATTERN = "step-*-*.pt"
_DIGITS = 16


def write_checkpoint(folder: Path, step: int, state: Mapping[str, Any]) -> Path:
    """Write the state after ``step``, and remove all checkpoints but the newest :data:`KEPT`.

    Args:
        folder: of the run's checkpoints.
        step: the last one that the state has in it.
        state: tensors, numbers, texts, and lists and dicts of them.
    """
    stream = io.BytesIO()
    torch.save(dict(state), stream)
    content = stream.getvalue()
    path = folder / _NAME.format(step=step, digest=sha256_bytes(content)[:_DIGITS])
    write_atomic(path, content)
    for old in _newest_first(folder)[KEPT:]:
        old.unlink()
    return path


def read_checkpoint(folder: Path, say: Callable[[str], None] = lambda line: None) -> tuple[int, dict[str, Any]] | None:
    """The newest checkpoint that is whole, as (its step, its state); None where there is none.

    One that is damaged is renamed to ``<name>.damaged``, with a line to ``say``. What a killed process had begun to
    write is removed.
    """
    for unfinished in folder.glob(".step-*"):
        unfinished.unlink()
    for path in _newest_first(folder):
        step, digest = path.stem.split("-")[1:]
        content = path.read_bytes()
        if sha256_bytes(content)[:_DIGITS] == digest:
            return int(step), torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        aside = path.replace(path.with_name(f"{path.name}.damaged"))
        say(f"{path} is damaged (its content is not what its name says): set aside as {aside.name}")
    return None


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob(_PATTERN), reverse=True)
