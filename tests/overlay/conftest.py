"""A small upstream with a history, and a project with a stack of two patches on it; made once, copied for each test."""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from leonardo.overlay import journal, operations
from leonardo.overlay.page import PAGE, render_page
from leonardo.overlay.stack import LOCK, SERIES, Lock, Stack, read_stack
from leonardo.overlay.tree import Tree

RUN = "engine/run.py"
PARTS = "engine/parts.py"
EXTRA = "engine/extra.py"

LINES = [f"step_{number} = {number}" for number in range(1, 21)]


@dataclass(frozen=True)
class Lab:
    """A project folder with its stack, and upstream's checkout in it.

    ``commits``: pin, later (a commit that moves what the patches touch), clash (one that changes the line that the
    second patch inserts after), renamed (one that renames a touched file), taken (one that holds the first patch).
    """

    project: Path
    commits: dict[str, str]

    @property
    def upstream(self) -> Path:
        return self.project / "upstream"

    @property
    def stack(self) -> Stack:
        return read_stack(self.project / "patches")

    def file(self, path: str) -> Path:
        return self.upstream / path

    def git(self, *words: str) -> str:
        return git(self.upstream, *words)

    def run(self, operation: Callable[..., list[str]], *arguments: str) -> list[str]:
        """Run an operation as the command line does."""
        with journal.at_work(self.upstream) as tree:
            return operation(tree, self.project, self.stack, *arguments)

    def back(self) -> list[str]:
        """Abort."""
        from leonardo.overlay.rebase import go_back

        with journal.at_work(self.upstream) as tree:
            return go_back(tree, self.project)

    def insert(self, after: str, text: str, path: str = RUN) -> None:
        """Insert a line in the checkout."""
        content = self.file(path).read_text()
        assert f"{after}\n" in content
        self.file(path).write_text(content.replace(f"{after}\n", f"{after}\n{text}\n", 1))

    def state(self) -> dict[str, object]:
        """Everything that a command may change."""
        tree = Tree(self.upstream)
        with journal.at_work(self.upstream):
            names = [PAGE, *(f"patches/{path.name}" for path in (self.project / "patches").iterdir())]
            return {
                "files": {name: (self.project / name).read_text() for name in sorted(names)},
                "head": (tree.head, self.git("rev-parse", "--abbrev-ref", "HEAD")),
                "refs": operations.existing_refs(tree),
                "content": tree.work_tree(),
                "changes": tree.changes(),
                "journal": journal.read_journal(tree),
                "lock": (tree.git_folder / "index.lock").exists(),
            }


def git(folder: Path, *words: str) -> str:
    """Run git as a person of fixed name and time."""
    who = {f"GIT_{role}_{key}": "tester" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    when = {"GIT_AUTHOR_DATE": "@1700000000 +0000", "GIT_COMMITTER_DATE": "@1700000000 +0000"}
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(
        command, env=os.environ | who | when, check=True, capture_output=True, text=True
    ).stdout.strip()


def fill_in(path: Path, description: str) -> None:
    """Fill in the header of a new patch."""
    text = path.read_text()
    for old, new in {
        "what it inserts": f"{description},\n on two lines.",
        "what upstream lacks": "a test needs it",
        "(say why)": "(it is a test's)",
        "what makes it needless": "never",
        "tests/...": "tests/test_it.py",
    }.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The lab that tests get copies of; its stack is applied."""
    project = tmp_path_factory.mktemp("overlay") / "project"
    upstream = project / "upstream"
    (upstream / "engine").mkdir(parents=True)
    git(project, "init", "-q", "upstream")
    git(upstream, "config", "core.checkStat", "minimal")  # copies of the checkout are as good as refreshed
    git(upstream, "config", "core.trustctime", "false")
    git(upstream, "config", "user.name", "tester")
    git(upstream, "config", "user.email", "tester@localhost")
    commits = {}

    def commit(name: str, parent: str = "", **files: str | None) -> None:
        if parent:
            git(upstream, "checkout", "-q", commits[parent])
        for key, text in files.items():
            path = upstream / {"run": RUN, "parts": PARTS, "other": "other.txt", "moved": "engine/moved.py"}[key]
            if text is None:
                path.unlink()
            else:
                path.write_text(text)
        git(upstream, "add", "-A")
        git(upstream, "commit", "-q", "-m", f"upstream: {name}")
        commits[name] = git(upstream, "rev-parse", "HEAD")

    def text(lines: list[str]) -> str:
        return "".join(f"{line}\n" for line in lines)

    commit("first", run=text(LINES[:15]), parts="def part():\n    return 1\n")
    commit("pin", run=text(LINES), other="other\n")
    moved = ["# one", "# two", "# three", *LINES[:3], "# four", *LINES[3:]]
    commit("later", run=text(moved), other="changed\n")
    commit("clash", parent="pin", run=text([*LINES[:9], "step_10 = 'ten'", *LINES[10:]]))
    commit("renamed", parent="pin", run=None, moved=text(LINES))
    commit("taken", parent="pin", run=text([*LINES[:5], "first = True", *LINES[5:]]))
    git(upstream, "checkout", "-q", commits["pin"])

    (project / "patches").mkdir()
    (project / "tests").mkdir()
    (project / "tests" / "test_it.py").touch()
    (project / "patches" / SERIES).write_text("# the patches\n")
    (project / "patches" / LOCK).write_text(Lock(commits["pin"]).render())
    lab = Lab(project, commits)
    (project / PAGE).write_text(render_page(lab.stack))
    lab.insert("step_5 = 5", "first = True")
    lab.run(operations.new_patch, "run-add-first")
    fill_in(project / "patches" / "0001-run-add-first.patch", "the first")
    lab.insert("step_10 = 10", "from leonardo.hooks.weights import announce_pause as second")
    lab.file(EXTRA).write_text("added = 1\n")
    lab.run(operations.new_patch, "run-add-second")
    fill_in(project / "patches" / "0002-run-add-second.patch", "the second, with a file of its own")
    lab.run(operations.refresh)
    return lab


@pytest.fixture
def lab(original: Lab, tmp_path: Path) -> Lab:
    """A copy with the stack applied."""
    shutil.copytree(original.project, tmp_path / "project", symlinks=True)
    return Lab(tmp_path / "project", original.commits)


@pytest.fixture
def pristine(lab: Lab) -> Lab:
    """A copy with the stack not applied."""
    lab.run(operations.unapply)
    return lab
