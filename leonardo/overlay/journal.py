"""What a command is about to do, written down before it does it, so that a command killed at any point can be finished
or taken back.

A command first makes everything it needs as git objects (invisible until a ref names them), then writes one journal
with the state before and after, then carries it out in steps that may be repeated, then removes the journal. While
there is a journal, only ``continue`` and ``abort`` work; every other command says so.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from leonardo.errors import InfrastructureError, InputError
from leonardo.files import write_atomic, write_json
from leonardo.holding import taken
from leonardo.overlay.entries import ABSENT
from leonardo.overlay.gitpython import GitCommandError
from leonardo.overlay.tree import Tree, git_failed

HOW_ON = "Go on: make continue-patches; go back: make abort-patches"
_PATIENCE = 10.0
"""Seconds to wait for another command to end."""


@dataclass(frozen=True)
class Position:
    """What is checked out: a commit, and the branch that it is on (``""``: none)."""

    commit: str
    branch: str = ""


@dataclass(frozen=True)
class State:
    """The project's stack files and upstream's checkout at one time.

    Attributes:
        position: what is checked out.
        refs: full name -> commit of the overlay's refs; ``""`` for one that is not there.
        files: path in the project -> text; ``None`` for one that is not there.
    """

    position: Position
    refs: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Conflict:
    """Where a rebase stands: what was merged, and the patch that waits for a person (``""``: none does).

    Attributes:
        onto: upstream's new commit.
        merged: patch and commit, in order.
        patch: the patch in conflict; its files are in the checkout once ``shown``.
        source: its commit on the old pin.
    """

    onto: str
    merged: tuple[tuple[str, str], ...] = ()
    patch: str = ""
    source: str = ""
    shown: bool = False

    @property
    def tip(self) -> str:
        """The commit that the next patch goes on."""
        return self.merged[-1][1] if self.merged else self.onto


@dataclass(frozen=True)
class Journal:
    """An operation under way: in words, the state to go back to, and either the state to go to or a conflict.

    ``keeps_edits``: the files of the checkout are the person's, and stay as they are.
    """

    operation: str
    before: State
    after: State | None = None
    conflict: Conflict | None = None
    keeps_edits: bool = False

    def write(self, tree: Tree) -> None:
        """Put it on the disk, whole."""
        write_json(_path(tree), asdict(self))


def read_journal(tree: Tree) -> Journal | None:
    """The operation under way, if there is one."""
    path = _path(tree)
    if not path.is_file():
        return None
    values = json.loads(path.read_text())
    conflict = values["conflict"]
    return Journal(
        operation=values["operation"],
        before=_state(values["before"]),
        after=_state(values["after"]) if values["after"] else None,
        conflict=Conflict(**conflict | {"merged": tuple(map(tuple, conflict["merged"]))}) if conflict else None,
        keeps_edits=values["keeps_edits"],
    )


def remove_journal(tree: Tree) -> None:
    """The operation is done."""
    _path(tree).unlink(missing_ok=True)


def refuse_unfinished(tree: Tree) -> None:
    """Raise InputError where an operation is under way; says which, and how to go on or back."""
    journal = read_journal(tree)
    if journal is None:
        return
    if journal.conflict and journal.conflict.shown:
        what = f"{journal.operation} waits: {journal.conflict.patch} is in conflict in {tree.path}"
    else:
        what = f"{journal.operation} was interrupted, and is half done"
    raise InputError(what, HOW_ON)


@contextmanager
def at_work(path: Path) -> Iterator[Tree]:
    """The checkout at ``path``, for this command alone. The lock lasts as long as the command and git's processes."""
    folder = Tree(path).git_folder / "leonardo"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as stream:
        deadline = time.monotonic() + _PATIENCE
        while not taken(stream):
            if time.monotonic() > deadline:
                raise InfrastructureError(
                    f"another patches command has been at work on {path} for {_PATIENCE:.0f} s", "Let it end first"
                )
            time.sleep(0.05)
        try:
            yield Tree(path, held=(stream.fileno(),))
        except GitCommandError as error:
            raise git_failed("do its part", error) from error


def carry_out(tree: Tree, project: Path, journal: Journal, *, again: bool = False) -> list[str]:
    """Bring about the journal's ``after``. ``again``: an earlier try was interrupted. Returns notes for the person."""
    if journal.after is None:
        raise InfrastructureError(f"{journal.operation} has no end to be carried to", HOW_ON)
    return _reach(tree, project, journal, journal.after, again=again)


def take_back(tree: Tree, project: Path, journal: Journal) -> list[str]:
    """Bring back the journal's ``before``. Returns notes for the person."""
    return _reach(tree, project, journal, journal.before, again=True)


def _reach(tree: Tree, project: Path, journal: Journal, goal: State, *, again: bool) -> list[str]:
    states = [state for state in (journal.before, journal.after) if state]
    notes: list[str] = []
    if again:
        remove_stale_lock(tree)
        _remove_unfinished(project, states)
        notes = _rescue_files(tree, project, states)
    # off the branch: to move it would move what git takes for checked out, and leave the files as they are
    tree.git("update-ref", "--no-deref", "HEAD", tree.head)
    for ref, commit in goal.refs.items():
        if commit:
            tree.git("update-ref", ref, commit)
    if journal.keeps_edits:
        _point(tree, goal.position)
    else:
        known = [state.position.commit for state in states]
        notes += move(tree, goal.position, known=known if again else None)
    for name, text in goal.files.items():
        _put(project / name, text)
    for ref, commit in goal.refs.items():
        if not commit:
            tree.git("update-ref", "-d", ref)
    remove_journal(tree)
    return notes


def move(tree: Tree, goal: Position, *, known: list[str] | None) -> list[str]:
    """Check ``goal`` out. With ``known`` (an interrupted move between these commits is repeated) whatever the files
    hold is overwritten; what is of none of these commits is first saved under ``refs/leonardo/rescued``, with a note.
    """
    notes = rescue(tree, known) if known is not None else []
    words = ["checkout", "--quiet", *(["--force"] if known is not None else [])]
    where = ["-B", goal.branch, goal.commit] if goal.branch else ["--detach", goal.commit]
    try:
        tree.git(*words, *where)
        if known is not None:
            _remove_made(tree, goal.commit, known)
    except GitCommandError as error:
        raise git_failed("check out the files", error) from error
    return notes


def _remove_made(tree: Tree, commit: str, known: list[str]) -> None:
    """Remove files of ``known`` commits that a forced checkout of ``commit`` leaves as untracked."""
    there = set(tree.changes())
    for other in known:
        for path in tree.git("diff", "--name-only", "--no-renames", "--diff-filter=D", "-z", other, commit).split("\0"):
            if path in there:
                (tree.path / path).unlink(missing_ok=True)


def rescue(tree: Tree, known: list[str]) -> list[str]:
    """Save the checkout's files as a commit where one of them is of no ``known`` commit."""
    strange = [path for path in tree.changes() if not _is_of(tree, path, known)]
    if not strange:
        return []
    content = tree.work_tree()
    name = time.strftime("refs/leonardo/rescued/%Y%m%d-%H%M%S")
    who = {f"GIT_{role}_{key}": "leonardo" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    commit = tree.git("commit-tree", content, "-p", "HEAD", data=b"Files as they were found\n", environment=who)
    tree.git("update-ref", name, commit)
    return [f"{', '.join(strange[:3])}{' ...' if len(strange) > 3 else ''}: as found, kept in {name} of {tree.path}"]


def _is_of(tree: Tree, path: str, commits: list[str]) -> bool:
    """Whether the file is as one of ``commits`` has it."""
    file = tree.path / path
    blob = tree.git("hash-object", "--", path) if file.is_file() else ABSENT
    return any(tree.entry(commit, path).blob == blob for commit in commits)


def _point(tree: Tree, position: Position) -> None:
    """Make HEAD and index those of ``position``; files stay as they are."""
    if position.branch:
        tree.git("update-ref", f"refs/heads/{position.branch}", position.commit)
        tree.git("symbolic-ref", "HEAD", f"refs/heads/{position.branch}")
    else:
        tree.git("update-ref", "--no-deref", "HEAD", position.commit)
    tree.git("reset", "--quiet", "--mixed")


def _rescue_files(tree: Tree, project: Path, states: list[State]) -> list[str]:
    """Save stack files that were edited since the interruption."""
    notes = []
    for name in dict.fromkeys(name for state in states for name in state.files):
        found = _get(project / name)
        if found is not None and all(state.files.get(name, found) != found for state in states):
            copy = tree.git_folder / "leonardo" / "rescued" / f"{time.strftime('%Y%m%d-%H%M%S')}-{Path(name).name}"
            _put(copy, found)
            notes.append(f"{name} was edited meanwhile: kept as {copy}")
    return notes


def _get(path: Path) -> str | None:
    return os.fsdecode(path.read_bytes()) if path.is_file() else None


def _put(path: Path, text: str | None) -> None:
    if text is None:
        path.unlink(missing_ok=True)
    elif _get(path) != text:
        write_atomic(path, os.fsencode(text))


def _remove_unfinished(project: Path, states: list[State]) -> None:
    """Remove what a killed write of a stack file left beside it."""
    for path in {project / name for state in states for name in state.files}:
        for left in path.parent.glob(f".{path.name}.*"):
            left.unlink(missing_ok=True)


def remove_stale_lock(tree: Tree) -> None:
    """A killed git leaves its lock on the index. Ours holds: none of our own is at work."""
    (tree.git_folder / "index.lock").unlink(missing_ok=True)


def _path(tree: Tree) -> Path:
    return tree.git_folder / "leonardo" / "journal.json"


def _state(values: dict[str, dict[str, str]]) -> State:
    return State(Position(**values["position"]), values["refs"], values["files"])
