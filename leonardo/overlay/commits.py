"""Patches as commits: built, merged and exported among git's objects, without touching a file of the checkout.

A commit is a function of its parent and its patch file (author, date and text are the patch's, the committer is the
author), so that building twice gives the same ids.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.utils import parseaddr

from leonardo.errors import InputError
from leonardo.overlay.entries import Entry
from leonardo.overlay.gitpython import GitCommandError
from leonardo.overlay.patchfile import HOW_TO_INSERT, read_patch
from leonardo.overlay.tree import Tree, git_failed, reason

_FORMAT_WORDS = (
    "format-patch -1 --stdout -p -U0 --zero-commit --no-signature --no-numbered --full-index --no-renames --text "
    "--no-textconv --no-ext-diff --subject-prefix=PATCH --no-attach --no-thread --no-to --no-cc --no-add-header "
    "--no-notes --no-signoff --no-from --no-base --encode-email-headers"
)
_FORMAT = tuple(_FORMAT_WORDS.split())


@dataclass(frozen=True)
class PatchCommit:
    """A patch and the commit that it is."""

    patch: str
    id: str


@dataclass(frozen=True)
class Author:
    """Whose a commit is, and since when."""

    name: str
    mail: str
    date: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make it author and committer."""
        values = {"NAME": self.name, "EMAIL": self.mail, "DATE": self.date}
        return {f"GIT_{role}_{key}": value for role in ("AUTHOR", "COMMITTER") for key, value in values.items()}


def commit_tree(tree: Tree, content: str, parent: str, message: str, author: Author) -> str:
    """A commit of tree ``content``."""
    return tree.git(
        "commit-tree", content, "-p", parent, data=f"{message.strip()}\n".encode(), environment=author.environment
    )


def commit_text(tree: Tree, commit: str) -> tuple[str, Author]:
    """Message and author of a commit."""
    name, mail, date, message = tree.git("log", "-1", "--format=%an%n%ae%n%ad%n%B", "--date=raw", commit).split("\n", 3)
    return message.strip("\n"), Author(name, mail, f"@{date}")


def build(tree: Tree, pin: str, texts: Mapping[str, bytes]) -> list[PatchCommit]:
    """Make the commits of patches (name -> text, in order) on ``pin``.

    Raises:
        InputError: one does not apply exactly; names it, its file and why.
    """
    commits: list[PatchCommit] = []
    parent = pin
    for name, text in texts.items():
        parent = _build_one(tree, parent, name, text)
        commits.append(PatchCommit(name, parent))
    return commits


def _build_one(tree: Tree, parent: str, name: str, text: bytes) -> str:
    patch = read_patch(name, text)
    for change in patch.changes:
        before = tree.entry(parent, change.path)
        if before != Entry(change.old_mode, change.old):
            raise InputError(
                f"{name} was made for another {change.path} (blob {change.old[:8]}, here {before.blob[:8]})",
                "Lock and patches do not belong together: check out one commit of the project, or rebase",
            )
    mail = message_from_bytes(text, policy=policy.default)
    address, sent = parseaddr(str(mail["From"])), mail["Date"]
    if not all(address) or sent is None:
        raise InputError(f"{name} has no author and date", "Restore its mail header")
    author = Author(address[0], address[1], f"@{int(sent.datetime.timestamp())} {sent.datetime.strftime('%z')}")
    body = re.split(r"^diff --git ", text.decode().partition("\n\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    with tree.index(parent) as environment:
        try:
            tree.git("apply", "--cached", "--unidiff-zero", "-", data=text, environment=environment)
        except GitCommandError as error:
            raise InputError(f"{name} does not apply ({reason(error)})", "Refresh or rebase the stack") from error
        content = tree.git("write-tree", "--missing-ok", environment=environment)
    for change in patch.changes:
        if tree.entry(content, change.path) != Entry(change.mode, change.new):
            raise InputError(f"{name} leaves another {change.path} than its index line says", "Refresh the patch")
    return commit_tree(tree, content, parent, f"{patch.subject}\n\n{body.strip()}", author)


def export(tree: Tree, commit: str) -> bytes:
    """The patch file of a commit: git's own, less the lines of upstream that it puts behind a hunk's ``@@``."""
    text = tree.git_bytes(*_FORMAT, commit)
    # every line of the diff but the headers begins with + where the commit only inserts
    return re.sub(rb"^(@@ -[0-9,]+ \+[0-9,]+ @@).*$", rb"\1", text, flags=re.MULTILINE)


@dataclass(frozen=True)
class Merged:
    """A change carried to another parent: the tree, or the files in conflict."""

    content: str
    conflicts: tuple[str, ...] = ()


def carry(tree: Tree, commit: str, onto: str, *, base: str | None = None) -> Merged:
    """What ``commit`` changes since ``base`` (its parent), merged three-way into ``onto``."""
    base = base or f"{commit}^"
    nobody = Author("leonardo", "leonardo@localhost", "@0 +0000")
    # merge-tree takes the merge base from history: give it one of two commits on that base
    ours = commit_tree(tree, f"{onto}^{{tree}}", base, "ours", nobody)
    theirs = commit_tree(tree, f"{commit}^{{tree}}", base, "theirs", nobody)
    try:
        return Merged(tree.git("merge-tree", "--write-tree", "--name-only", "--no-messages", ours, theirs))
    except GitCommandError as error:
        if error.status == 129:  # git shows how it is used
            raise InputError("this git cannot merge without a checkout", "Use git 2.38 or newer") from error
        if error.status != 1:
            raise git_failed("merge", error) from error
        output = str(error.stdout).strip().removeprefix("stdout:").strip(" '\n").splitlines()
        return Merged(output[0], tuple(dict.fromkeys(output[1:])))


def assert_inserts(tree: Tree, before: str, after: str, who: str) -> None:
    """Refuse a change that does more than insert lines and files. Raises InputError: what, where, what to do."""
    raw = tree.git("diff", "--raw", "--no-renames", "--no-abbrev", "-z", before, after).split("\0")
    for record, path in zip(raw[0::2], raw[1::2], strict=False):
        old_mode, new_mode, _, _, status = record.removeprefix(":").split()
        if status == "D":
            raise InputError(f"{who}: {path} is deleted", "Keep upstream's files: go round it where it is used")
        if status == "T" or new_mode not in ("100644", "100755"):
            raise InputError(f"{who}: {path} is no plain file", "Only text is inserted")
        if status == "M" and old_mode != new_mode:
            raise InputError(f"{who}: the mode of {path} changes from {old_mode} to {new_mode}", "Change it back")
    for record in tree.git("diff", "--numstat", "--no-renames", "-z", before, after).split("\0"):
        if not record:
            continue
        added, removed, path = record.split("\t")
        if added == "-":
            raise InputError(f"{who}: {path} is not text", "Only text is inserted: keep data in our own package")
        if removed != "0":
            diff = tree.git_bytes("diff", "-U0", "--no-renames", before, after, "--", path)
            line = re.search(rb"^@@ -(\d+)(?:,(?!0 )\d+)? ", diff, re.MULTILINE)
            where = f"line {line[1].decode()} of {path}" if line else path
            raise InputError(f"{who}: {where} is changed or removed", f"A patch only inserts: {HOW_TO_INSERT}")
    # an insertion at a file's end after a line without newline changes that line: numstat has shown it above


def commit_patch(tree: Tree, parent: str, content: str, patch: str, text: tuple[str, Author]) -> str:
    """The commit of ``patch`` on ``parent``, its ``Touches`` brought up to date.

    Raises:
        InputError: the change is none, or does more than insert.
    """
    assert_inserts(tree, parent, content, patch)
    paths = tree.git("diff", "--name-only", "--no-renames", "-z", parent, content).split("\0")
    paths = [path for path in paths if path]
    if not paths:
        raise InputError(f"{patch} changes nothing", "Take it out of patches/series, remove it, and repeat")
    return commit_tree(tree, content, parent, _touching(text[0], paths), text[1])


def _touching(message: str, paths: list[str]) -> str:
    """The message with its ``Touches`` field naming ``paths``, one a line."""
    lines, inside = [], False
    for line in message.splitlines():
        inside = line.startswith("Touches:") or (inside and line.startswith(" "))
        if line.startswith("Touches:"):
            lines += [f"Touches: {paths[0]}", *(f" {path}" for path in paths[1:])]
        elif not inside:
            lines.append(line)
    return "\n".join(lines)
