"""Apply, unapply, diff, refresh, new patch: what people do to the stack on one commit of upstream."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from leonardo.errors import InputError
from leonardo.files import write_atomic
from leonardo.overlay.check import lock_files
from leonardo.overlay.commits import (
    Author,
    PatchCommit,
    build,
    carry,
    commit_patch,
    commit_text,
    commit_tree,
    export,
)
from leonardo.overlay.gitpython import GitCommandError
from leonardo.overlay.journal import Journal, Position, State, carry_out, refuse_unfinished
from leonardo.overlay.page import PAGE, render_page
from leonardo.overlay.patchfile import NAME, TEMPLATE, read_patch
from leonardo.overlay.stack import LOCK, SERIES, Lock, Stack, read_stack
from leonardo.overlay.tree import Tree, git_failed

SERIES_HEAD = "# The patches, in order. Read by the overlay's commands, by quilt and by people.\n"


@dataclass(frozen=True)
class Standing:
    """Where the checkout stands: the stack's commits, what is checked out, which overlay tip that is (``""``: none)."""

    commits: tuple[PatchCommit, ...]
    position: Position
    tip: str
    pin: str

    @property
    def goal(self) -> str:
        """The commit of the whole stack."""
        return self.commits[-1].id if self.commits else self.pin


def overlay_refs(stack: Stack, tip: str) -> dict[str, str]:
    """The refs that an applied stack has: a tag for upstream, one for the stack, and the branch."""
    return {
        upstream_tag(stack.lock.commit): stack.lock.commit,
        f"refs/tags/leonardo-{stack.lock.commit[:8]}-{stack.digest[:8]}": tip,
        f"refs/heads/{branch_of(stack.lock.commit)}": tip,
    }


def upstream_tag(pin: str) -> str:
    """Full name of the tag on upstream's commit."""
    return f"refs/tags/tmax-upstream-{pin[:8]}"


def branch_of(pin: str) -> str:
    """The branch of the applied stack."""
    return f"leonardo/{pin[:8]}"


def existing_refs(tree: Tree) -> dict[str, str]:
    """The overlay's refs that are there now, full name -> commit."""
    patterns = ("refs/tags/leonardo-*", "refs/heads/leonardo/*", "refs/tags/tmax-upstream-*")
    lines = tree.git("for-each-ref", "--format=%(refname) %(objectname)", *patterns).splitlines()
    return {name: commit for name, _, commit in (line.partition(" ") for line in lines)}


def refs_between(there: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The overlay's refs before and after: those that are not ``wanted`` any more are removed."""
    names = {*there, *wanted}
    return {name: there.get(name, "") for name in names}, {name: wanted.get(name, "") for name in names}


def standing(tree: Tree, stack: Stack) -> Standing:
    """Build the stack's commits and see where the checkout stands. Raises InputError where it is at another place."""
    pin = stack.lock.commit
    if not tree.has(pin):
        raise InputError(f"{tree.path} does not have upstream's commit {pin[:8]}", "Fetch it: make upstream")
    commits = tuple(build(tree, pin, {name: stack.texts[name] for name in stack.names}))
    head = tree.head
    name = tree.git("rev-parse", "--abbrev-ref", "HEAD")
    position = Position(head, "" if name == "HEAD" else name)
    known = [commit for ref, commit in existing_refs(tree).items() if ref.startswith("refs/tags/leonardo-")]
    tips = [commits[-1].id if commits else pin, *known, pin]
    for tip in dict.fromkeys(tips):
        if _descends(tree, head, tip):
            return Standing(commits, position, tip, pin)
    raise InputError(
        f"{tree.path} is at {head[:8]}, which is not on the pinned commit {pin[:8]}",
        f"Go there: git -C {tree.path} checkout {pin[:8]}; or carry the stack: make rebase-patches ONTO={head[:8]}",
    )


def _descends(tree: Tree, commit: str, ancestor: str) -> bool:
    if commit == ancestor:
        return True
    try:
        tree.git("merge-base", "--is-ancestor", ancestor, commit)
    except GitCommandError:
        return False
    return True


def require_clean(tree: Tree, now: Standing, doing: str) -> None:
    """Refuse where files are edited, or commits of a person's own are on top: they would be lost."""
    changed = tree.changes()
    if changed:
        some = ", ".join(changed[:3]) + (" ..." if len(changed) > 3 else "")
        raise InputError(
            f"{tree.path} has edits ({some}): {doing} would lose them",
            "Keep them in the stack: make refresh-patches or new-patch; or set them aside: git stash -u",
        )
    if now.position.commit != now.tip:
        raise InputError(
            f"{tree.path} has commits of its own on the stack: {doing} would lose them",
            "Keep them in the stack: make refresh-patches or new-patch",
        )


def apply(tree: Tree, project: Path, stack: Stack) -> list[str]:
    """Put the stack on the checkout. Returns what to tell. Repeated, it changes nothing."""
    refuse_unfinished(tree)
    now = standing(tree, stack)
    goal = Position(now.goal, branch_of(now.pin))
    refs = overlay_refs(stack, now.goal)
    there = existing_refs(tree)
    if now.position.commit == now.goal and now.commits and refs.items() <= there.items():
        edited = len(tree.changes())
        return [f"{len(now.commits)} patches are applied already" + (f"; {edited} edited files" if edited else "")]
    require_clean(tree, now, "apply")
    old, new = refs_between(there, refs)
    journal = Journal("apply-patches", State(now.position, old), State(goal, new))
    journal.write(tree)
    return [*carry_out(tree, project, journal), f"{len(now.commits)} patches are on branch {goal.branch}"]


def unapply(tree: Tree, project: Path, stack: Stack) -> list[str]:
    """Leave the checkout as it was fetched: at the pin, without the overlay's refs."""
    refuse_unfinished(tree)
    now = standing(tree, stack)
    there = existing_refs(tree)
    goal = Position(now.pin)
    if now.position == goal and not there:
        return ["the patches are not applied"]
    require_clean(tree, now, "unapply")
    journal = Journal("unapply-patches", State(now.position, there), State(goal, dict.fromkeys(there, "")))
    journal.write(tree)
    return [*carry_out(tree, project, journal), f"{tree.path} is at upstream's {now.pin[:8]}"]


def diff(tree: Tree, stack: Stack, patch: str = "", context: int | None = None, *, color: bool = False) -> str:
    """The inserted lines with upstream's around them: of one patch, or of the stack with edits not yet refreshed.

    ``context``: lines of context; None: the function that they are in.
    """
    now = standing(tree, stack)
    words = ["diff", "--function-context" if context is None else f"-U{context}", "--no-renames"]
    words += ["--color=always"] if color else []
    if patch:
        name = patch_named(stack, patch)
        place = [commit.patch for commit in now.commits].index(name)
        parents = [now.pin, *(commit.id for commit in now.commits)]
        return tree.git(*words, parents[place], parents[place + 1])
    applied = now.tip != now.pin or not now.commits
    return tree.git(*words, now.pin, tree.work_tree() if applied else now.goal)


def patch_named(stack: Stack, name: str) -> str:
    """The patch that a person means: its file name, without the ending, or its number."""
    found = [each for each in stack.names if name in (each, each.removesuffix(".patch"), each[:4], str(int(each[:4])))]
    if not found:
        raise InputError(f"no patch is called {name}", f"There are {', '.join(stack.names) or 'none'}")
    return found[0]


def refresh(tree: Tree, project: Path, stack: Stack, patch: str = "") -> list[str]:
    """Write the edits made in the checkout back to ``patch`` (the last one where none is named)."""
    refuse_unfinished(tree)
    if not stack.names:
        raise InputError("the stack has no patch", "Begin one: make new-patch NAME=area-verb")
    now = _at_stack(tree, stack)
    name = patch_named(stack, patch) if patch else stack.names[-1]
    place = stack.names.index(name)
    edited = tree.work_tree()
    parents = [now.pin, *(commit.id for commit in now.commits)]
    commits = list(now.commits[:place])
    parent = parents[place]
    for number, commit in enumerate(now.commits[place:], place):
        if number == place:
            merged = carry(tree, _loose(tree, edited, now.goal), commit.id, base=now.goal)
        else:
            merged = carry(tree, commit.id, parent, base=parents[number])
        if merged.conflicts:
            later = commit.patch if number > place else stack.names[-1]
            raise InputError(
                f"the edit of {', '.join(merged.conflicts)} rests on lines of a later patch than {name}",
                f"Refresh that one: make refresh-patches PATCH={later[:4]}",
            )
        parent = commit_patch(tree, parent, merged.content, commit.patch, commit_text(tree, commit.id))
        commits.append(PatchCommit(commit.patch, parent))
    if tree_of(tree, parent) != edited:
        raise InputError(f"the edit does not come out the same through {name}", "Refresh the last patch instead")
    changed = tree_of(tree, now.goal) != edited
    told = f"the edits are in {name}" if changed else "no edits; headers, lock and page are written anew"
    return _store(tree, project, stack, now, commits, "refresh-patches", told)


def new_patch(tree: Tree, project: Path, stack: Stack, name: str) -> list[str]:
    """Make the edits in the checkout a new patch, the last of the stack. Its header is to be filled in."""
    refuse_unfinished(tree)
    now = _at_stack(tree, stack)
    number = int(stack.names[-1][:4]) + 1 if stack.names else 1
    file = f"{number:04d}-{name.removesuffix('.patch')}.patch"
    match = NAME.fullmatch(file)
    if not match:
        raise InputError(
            f"{name!r} is no name for a patch", "Use area-verb in lower case: sandbox-add-prepared-backend"
        )
    edited = tree.work_tree()
    if tree_of(tree, now.goal) == edited:
        raise InputError(f"{tree.path} has no edits to make a patch of", "Edit there first, then repeat this")
    verb = file[6 + len(match[2]) : -len(".patch")].replace("-", " ")
    message = f"{match[2]}: {verb}\n\n" + "".join(f"{field}: {text}\n" for field, text in TEMPLATE.items())
    new = commit_patch(tree, now.goal, edited, file, (message, _person(tree)))
    told = f"{project / 'patches' / file} is made: fill in its header, then make refresh-patches"
    return _store(tree, project, stack, now, [*now.commits, PatchCommit(file, new)], "new-patch", told)


def _at_stack(tree: Tree, stack: Stack) -> Standing:
    """Where the checkout stands, if that is on the stack as its files say."""
    now = standing(tree, stack)
    if tree_of(tree, now.tip) != tree_of(tree, now.goal):
        raise InputError(
            f"{tree.path} does not hold the stack of {stack.folder}",
            "Apply it first: make apply-patches (set edits aside with git stash -u)",
        )
    return now


def tree_of(tree: Tree, commit: str) -> str:
    """The id of a commit's tree."""
    return tree.git("rev-parse", f"{commit}^{{tree}}")


def _loose(tree: Tree, content: str, parent: str) -> str:
    """A commit of the checkout's files, to be merged from."""
    return commit_tree(tree, content, parent, "edits", Author("leonardo", "leonardo@localhost", "@0 +0000"))


def _person(tree: Tree) -> Author:
    """Who git says is at work."""
    try:
        name, _, rest = tree.git("var", "GIT_AUTHOR_IDENT").rpartition(" <")
    except GitCommandError as error:
        raise git_failed("tell who you are", error) from error
    mail, _, date = rest.partition("> ")
    return Author(name, mail, f"@{date}")


def stack_files(tree: Tree, project: Path, stack: Stack, pin: str, commits: list[PatchCommit]) -> dict[str, str]:
    """The stack's files, path in the project -> text, for these commits on ``pin``."""
    texts = {commit.patch: export(tree, commit.id) for commit in commits}
    patches = [read_patch(name, text) for name, text in texts.items()]
    new = Stack(stack.folder, Lock(pin, lock_files(tree, pin, patches)), tuple(texts), texts)
    folder = stack.folder.relative_to(project)
    files = {str(folder / name): text.decode() for name, text in texts.items()}
    files[str(folder / SERIES)] = series_text(stack, tuple(texts))
    files[str(folder / LOCK)] = new.lock.render()
    files[PAGE] = render_page(new)
    return files


def series_text(stack: Stack, names: tuple[str, ...]) -> str:
    """The series file: as it is where it lists these already, with its comments."""
    path = stack.folder / SERIES
    return path.read_text() if stack.names == names else SERIES_HEAD + "".join(f"{name}\n" for name in names)


def files_now(project: Path, names: Mapping[str, object]) -> dict[str, str | None]:
    """The project's files as they are."""
    return {name: (project / name).read_bytes().decode() if (project / name).is_file() else None for name in names}


def _store(
    tree: Tree, project: Path, stack: Stack, now: Standing, commits: list[PatchCommit], operation: str, told: str
) -> list[str]:
    """Make ``commits`` the stack: files, refs, HEAD. The checkout's files are those of the last commit already."""
    files = stack_files(tree, project, stack, now.pin, commits)
    texts = {name: files[str(stack.folder.relative_to(project) / name)].encode() for name in (c.patch for c in commits)}
    new = replace(stack, names=tuple(texts), texts=texts)
    refs = overlay_refs(new, commits[-1].id)
    old_refs, new_refs = refs_between(existing_refs(tree), refs)
    before = State(now.position, old_refs, files_now(project, files))
    after = State(Position(commits[-1].id, branch_of(now.pin)), new_refs, files)
    journal = Journal(operation, before, after, keeps_edits=True)
    journal.write(tree)
    return [*carry_out(tree, project, journal), told]


def refresh_page(project: Path, folder: Path) -> list[str]:
    """Without a checkout: generate the page alone."""
    write_atomic(project / PAGE, render_page(read_stack(folder)))
    return [f"{PAGE} is generated; there is no checkout whose edits could be written back"]
