"""Carry the stack to another commit of upstream: three-way merges, one patch after the other.

Merges are made among git's objects, so that nothing of the checkout or the stack's files changes before all are done.
A conflict alone needs the checkout: it then shows that patch with git's conflict marks, and waits.
"""

from dataclasses import replace
from pathlib import Path

from leonardo.errors import InputError
from leonardo.overlay.commits import PatchCommit, build, carry, commit_patch, commit_text
from leonardo.overlay.gitpython import GitCommandError
from leonardo.overlay.journal import (
    HOW_ON,
    Conflict,
    Journal,
    Position,
    State,
    carry_out,
    move,
    read_journal,
    refuse_unfinished,
    remove_stale_lock,
    rescue,
    take_back,
)
from leonardo.overlay.operations import (
    branch_of,
    existing_refs,
    files_now,
    overlay_refs,
    refs_between,
    require_clean,
    stack_files,
    standing,
    tree_of,
)
from leonardo.overlay.stack import Lock, Stack
from leonardo.overlay.tree import PIN_COMMAND, Tree, git_failed


def rebase(tree: Tree, project: Path, stack: Stack, onto: str) -> list[str]:
    """Carry the stack to ``onto`` (a commit or tag of upstream). Returns what to tell.

    Raises:
        InputError: a patch is in conflict; names it, the files, and upstream's change. Nothing else was changed.
    """
    refuse_unfinished(tree)
    if not onto:
        raise InputError("rebase needs a commit of upstream to carry the stack to", "Name it: ONTO=commit")
    now = standing(tree, stack)
    require_clean(tree, now, "rebase")
    goal = tree.fetch(onto)
    if goal == now.pin:
        return [f"the stack is on {goal[:8]} already"]
    before = State(now.position, existing_refs(tree))
    sources = [(commit.patch, commit.id) for commit in now.commits]
    return _merge(tree, project, stack, before, Conflict(goal), sources)


def go_on(tree: Tree, project: Path, stack: Stack) -> list[str]:
    """Finish whatever operation is under way."""
    journal = read_journal(tree)
    if journal is None:
        return ["nothing is half done"]
    if journal.conflict is None:
        return [*carry_out(tree, project, journal, again=True), f"{journal.operation} is done"]
    commits = _sources(tree, stack)
    if not journal.conflict.shown:
        remove_stale_lock(tree)
        notes = rescue(tree, [journal.before.position.commit, journal.conflict.tip])
        if journal.conflict.patch:
            raise _show(tree, journal, stack.lock.commit, notes)
        notes += move(tree, Position(journal.conflict.tip), known=[journal.conflict.tip])
        return notes + _merge(tree, project, stack, journal.before, journal.conflict, commits)
    merged = _resolved(tree, journal.conflict)
    conflict = replace(journal.conflict, merged=merged, patch="", source="", shown=False)
    replace(journal, conflict=conflict).write(tree)
    tree.git("update-ref", "--no-deref", "HEAD", conflict.tip)
    tree.git("reset", "--quiet", "--mixed")
    return _merge(tree, project, stack, journal.before, conflict, commits)


def go_back(tree: Tree, project: Path) -> list[str]:
    """Undo whatever operation is under way. A person's own edits in the checkout are kept, and a note says where."""
    journal = read_journal(tree)
    if journal is None:
        return ["nothing is half done"]
    if journal.conflict and journal.conflict.source:
        # so that the files which the conflict made are known, and go
        journal = replace(journal, after=State(Position(journal.conflict.source)))
    notes = take_back(tree, project, journal)
    return [*notes, f"{journal.operation} is taken back"]


def _sources(tree: Tree, stack: Stack) -> list[tuple[str, str]]:
    """Patch and commit of the stack on its old pin."""
    built = build(tree, stack.lock.commit, {name: stack.texts[name] for name in stack.names})
    return [(commit.patch, commit.id) for commit in built]


def _merge(
    tree: Tree, project: Path, stack: Stack, before: State, state: Conflict, sources: list[tuple[str, str]]
) -> list[str]:
    """Merge what is not merged yet, then store the stack."""
    for patch, source in sources[len(state.merged) :]:
        result = carry(tree, source, state.tip)
        if result.conflicts:
            journal = Journal("rebase-patches", before, conflict=replace(state, patch=patch, source=source))
            journal.write(tree)
            raise _show(tree, journal, stack.lock.commit, [])
        state = replace(state, merged=(*state.merged, (patch, _commit(tree, state.tip, result.content, patch, source))))
    commits = [PatchCommit(*each) for each in state.merged]
    files = stack_files(tree, project, stack, state.onto, commits)
    folder = stack.folder.relative_to(project)
    texts = {commit.patch: files[str(folder / commit.patch)].encode() for commit in commits}
    new = replace(stack, lock=Lock(state.onto), names=tuple(texts), texts=texts)
    old_refs, new_refs = refs_between(before.refs, overlay_refs(new, state.tip))
    journal = Journal(
        "rebase-patches",
        replace(before, refs=old_refs, files=files_now(project, files)),
        State(Position(state.tip, branch_of(state.onto)), new_refs, files),
    )
    journal.write(tree)
    told = f"{len(commits)} patches are on {state.onto[:8]}. Pin it: {PIN_COMMAND.format(state.onto)}; then commit"
    return [*carry_out(tree, project, journal), told]


def _commit(tree: Tree, parent: str, content: str, patch: str, source: str) -> str:
    """The commit of a carried patch. Refuses one that is empty there, or does more than insert."""
    if content == tree_of(tree, parent):
        raise InputError(
            f"{patch} changes nothing there: upstream has it", "Take it out of patches/series, remove it, and repeat"
        )
    return commit_patch(tree, parent, content, patch, commit_text(tree, source))


def _show(tree: Tree, journal: Journal, pin: str, notes: list[str]) -> InputError:
    """Put the conflict into the checkout. Returns the error that names it."""
    conflict = journal.conflict
    assert conflict is not None
    move(tree, Position(conflict.tip), known=[journal.before.position.commit, conflict.tip])
    try:
        tree.git("cherry-pick", "--no-commit", conflict.source)
    except GitCommandError as error:
        if error.status != 1:
            raise git_failed("show the conflict", error) from error
    replace(journal, conflict=replace(conflict, shown=True)).write(tree)
    files = _unmerged(tree)
    changes = []
    for path in files:
        there = tree.git("log", "-3", "--format=%h %s", f"{pin}..{conflict.onto}", "--", path).splitlines()
        back = tree.git("log", "-3", "--format=%h %s", f"{conflict.onto}..{pin}", "--", path).splitlines()
        changes += [f"{path}: {', '.join(there or back) or 'no commit of its own'}"]
    return InputError(
        ". ".join([*notes, f"{conflict.patch} is in conflict with upstream's change of {'; '.join(changes)}"]),
        f"Edit the conflict marks in {tree.path}, keep to inserting lines, then make continue-patches; "
        "or go back: make abort-patches",
    )


def _unmerged(tree: Tree) -> list[str]:
    return [path for path in tree.git("diff", "--name-only", "--diff-filter=U", "-z").split("\0") if path]


def _resolved(tree: Tree, conflict: Conflict) -> tuple[tuple[str, str], ...]:
    """The merged patches with the one that a person has resolved."""
    for path in _unmerged(tree):
        file = tree.path / path
        text = file.read_bytes() if file.is_file() else b""
        if any(line.startswith((b"<<<<<<< ", b">>>>>>> ")) for line in text.splitlines()):
            raise InputError(f"{path} still has conflict marks ({conflict.patch})", HOW_ON)
    content = tree.work_tree()
    return (*conflict.merged, (conflict.patch, _commit(tree, conflict.tip, content, conflict.patch, conflict.source)))
