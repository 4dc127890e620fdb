"""The stack on upstream's real tree: applied, exported, pushed by quilt, carried through upstream's history."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from leonardo.errors import InputError
from leonardo.overlay import journal, operations
from leonardo.overlay.check import check
from leonardo.overlay.rebase import go_back, rebase
from leonardo.overlay.stack import Stack, read_stack
from leonardo.overlay.tree import Tree
from tests.upstream.conftest import PROJECT, clone

STACK_FILES = ("patches", "PATCHES.md", "tests")
MOVED, NEAR = 8, 6
"""Commits that the stack is carried to: with other content of a file that it touches, and with the same."""


@pytest.fixture
def project(tmp_path: Path, stack: Stack) -> Path:
    """A copy of the project's stack with a clone of upstream beside it."""
    folder = tmp_path / "project"
    folder.mkdir()
    for name in STACK_FILES:
        source = PROJECT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    clone(folder / "upstream", stack.lock.commit)
    return folder


def test_apply_is_fast_exact_and_taken_back(project: Path) -> None:
    stack = read_stack(project / "patches")
    with journal.at_work(project / "upstream") as tree:
        started = time.perf_counter()
        operations.apply(tree, project, stack)
        assert time.perf_counter() - started < 10
        assert tree.changes() == []
        assert check(stack, project, tree).findings == ()  # exported byte for byte, among other things
        operations.unapply(tree, project, stack)
        assert tree.head == stack.lock.commit and tree.changes() == []


def test_refresh_without_edits_changes_no_byte(project: Path) -> None:
    before = {path.name: path.read_bytes() for path in (project / "patches").iterdir()}
    page = (project / "PATCHES.md").read_bytes()
    with journal.at_work(project / "upstream") as tree:
        operations.apply(tree, project, read_stack(project / "patches"))
        operations.refresh(tree, project, read_stack(project / "patches"))
    assert {path.name: path.read_bytes() for path in (project / "patches").iterdir()} == before
    assert (project / "PATCHES.md").read_bytes() == page


def test_quilt_gives_the_same_tree(project: Path, tmp_path: Path) -> None:
    if not shutil.which("quilt"):
        pytest.skip("quilt is not installed")
    variables = os.environ | {"QUILT_PATCHES": str(project / "patches"), "QUILT_PC": str(tmp_path / "pc")}
    subprocess.run(["quilt", "push", "-a"], cwd=project / "upstream", env=variables, check=True, capture_output=True)
    with journal.at_work(project / "upstream") as tree:
        pushed = tree.work_tree()
        tree.git("checkout", "-q", "--force", "HEAD")
        operations.apply(tree, project, read_stack(project / "patches"))
        assert tree.git("rev-parse", "HEAD^{tree}") == pushed


def versions(tree: Tree, stack: Stack) -> tuple[list[str], list[str]]:
    """Commits of upstream: those where a touched file has other content than at the pin, and those where none has."""
    pin = stack.lock.commit
    heads = tree.git("for-each-ref", "--format=%(objectname) %(refname)", "refs/remotes", "refs/heads").splitlines()
    named = (head.split() for head in heads)
    # a checkout's own branch and its HEAD may have the stack already
    branches = [commit for commit, name in named if "/leonardo/" not in name and not name.endswith("/HEAD")]
    # upstream's own changes of the files first, then what lies around them, the oldest (without the files) last
    changes = tree.git("log", "--format=%H", pin, "--", *stack.lock.files).split()
    history = tree.git("log", "--format=%H", pin).split()
    moved, same = [], []
    for commit in dict.fromkeys([*branches, *changes, *history]):
        entries = {path: tree.entry(commit, path) for path in stack.lock.files}
        (same if entries == dict(stack.lock.files) else moved).append(commit)
        if len(moved) >= MOVED and len(same) >= NEAR:
            break
    return [*moved[: MOVED - 1], history[-1]], [commit for commit in same if commit != pin][:NEAR]


def test_rebase_through_upstreams_history(project: Path) -> None:
    stack = read_stack(project / "patches")
    with journal.at_work(project / "upstream") as tree:
        moved, same = versions(tree, stack)
        if len(moved) < 5 or len(moved) + len(same) < 10:
            pytest.skip(f"the checkout holds too little of upstream's history: {len(moved) + len(same)} commits")
        clean, stopped = [], {}
        for commit in [*moved, *same]:
            try:
                rebase(tree, project, stack, commit)
            except InputError as error:
                named = [name for name in stack.names if str(error).startswith(f"{name} is in conflict")]
                assert named and commit not in same, str(error)
                patch = next(patch for patch in stack.patches if patch.name == named[0])
                assert any(f"{change.path}: " in str(error) for change in patch.changes), str(error)
                stopped[commit[:8]] = named[0]
                go_back(tree, project)
            else:
                carried = read_stack(project / "patches")
                assert carried.lock.commit == commit and check(carried, project, tree).findings == ()
                clean.append(commit[:8])
                rebase(tree, project, carried, stack.lock.commit)
            assert read_stack(project / "patches") == stack
            assert tree.changes() == []
        print(f"other content {len(moved)}, same content {len(same)}; clean {clean}; stopped {stopped}")
        assert clean
