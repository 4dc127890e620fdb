"""Upstream's tree for tests: a clone of its own, so that the checkout is not touched. Skipped where there is none."""

import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from leonardo.overlay.commits import build
from leonardo.overlay.stack import Stack, read_stack
from leonardo.overlay.tree import Tree

PROJECT = Path(__file__).parents[2]
PARTS = ("/training/open-instruct/", "/rl_data/", "!/training/open-instruct/docs/")


def clone(target: Path, commit: str) -> Path:
    """A sparse clone at ``commit`` that shares the objects of the checkout (or of ``LEONARDO_UPSTREAM``)."""
    source = Path(os.environ.get("LEONARDO_UPSTREAM") or PROJECT / "upstream")
    if not (source / ".git").exists() and not (source / "objects").is_dir():
        pytest.skip("upstream/ is not fetched (make upstream), and LEONARDO_UPSTREAM names no other checkout")

    def git(*words: str) -> None:
        subprocess.run(["git", "-C", str(target), *words], check=True, capture_output=True)

    target.mkdir()
    subprocess.run(
        ["git", "clone", "-q", "--shared", "--no-checkout", str(source), str(target)], check=True, capture_output=True
    )
    git("config", "core.sparseCheckout", "true")
    (target / ".git" / "info" / "sparse-checkout").write_text("".join(f"{part}\n" for part in PARTS))
    git("checkout", "-q", "--detach", commit)
    return target


@pytest.fixture(scope="session")
def stack() -> Stack:
    """The project's patch stack."""
    return read_stack(PROJECT / "patches")


@pytest.fixture(scope="session")
def upstream(tmp_path_factory: pytest.TempPathFactory, stack: Stack) -> Tree:
    """A clone at the pinned commit."""
    return Tree(clone(tmp_path_factory.mktemp("upstream") / "tree", stack.lock.commit))


@pytest.fixture(scope="session", params=["unpatched", "patched"])
def commit(request: pytest.FixtureRequest, upstream: Tree, stack: Stack) -> tuple[str, str]:
    """``unpatched`` or ``patched``, and that commit."""
    if request.param == "unpatched":
        return request.param, stack.lock.commit
    return request.param, build(upstream, stack.lock.commit, {name: stack.texts[name] for name in stack.names})[-1].id


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules that upstream's sandbox module imports and does not need here."""
    package = types.ModuleType("open_instruct")
    package.logger_utils = mock.MagicMock()
    monkeypatch.setitem(sys.modules, "open_instruct", package)
    monkeypatch.setitem(sys.modules, "docker", mock.MagicMock())
    yield
