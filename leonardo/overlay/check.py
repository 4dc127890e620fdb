"""The rules of the stack: offline they need its files alone; with upstream's tree the patches are applied too."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from leonardo.errors import LeonardoError
from leonardo.overlay.commits import build, export
from leonardo.overlay.entries import NO_FILE, Entry
from leonardo.overlay.gitpython import GitCommandError
from leonardo.overlay.hooks import hook_findings, hooks_of
from leonardo.overlay.page import PAGE, render_page
from leonardo.overlay.patchfile import Finding, Patch
from leonardo.overlay.stack import LOCK, Stack, series_findings
from leonardo.overlay.tree import PIN_COMMAND, Tree, gitlink, reason


@dataclass(frozen=True)
class Report:
    """What the check found: no findings means sound."""

    patches: tuple[Patch, ...]
    findings: tuple[Finding, ...]
    with_tree: bool

    @property
    def figures(self) -> dict[str, object]:
        """For ``out/check-patches.json``."""
        changes = [change for patch in self.patches for change in patch.changes]
        return {
            "patches": len(self.patches),
            "hooks": sum(len(hooks_of(patch)) for patch in self.patches),
            "files": len({change.path for change in changes}),
            "inserted_lines": sum(len(change.inserted) for change in changes),
            "removed_lines": sum(patch.removed_lines for patch in self.patches),
            "context_lines": sum(patch.context_lines for patch in self.patches),
            "with_tree": self.with_tree,
            "findings": [str(finding) for finding in self.findings],
        }


def check(stack: Stack, project: Path, tree: Tree | None = None) -> Report:
    """Hold the stack to its rules.

    Args:
        stack: what to check.
        project: the folder that ``PATCHES.md`` and the tests that headers name are in.
        tree: upstream's tree, where there is one: the patches are applied in it (to objects, not to its files) and
            exported again.
    """
    patches = stack.patches
    findings = series_findings(stack)
    for patch in patches:
        findings += patch.findings
        findings += _header_findings(patch, project)
        findings += hook_findings(patch)
    findings += _chain_findings(stack, patches)
    pinned = gitlink(project)
    if pinned not in ("", stack.lock.commit):
        text = f"the submodule is at {pinned[:8]}, the lock at {stack.lock.commit[:8]}"
        findings.append(Finding(LOCK, "gitlink", f"{text}: {PIN_COMMAND.format(stack.lock.commit)}"))
    page = project / PAGE
    if not page.is_file() or page.read_text() != render_page(stack):
        findings.append(Finding(PAGE, "out of date", "it is generated from the patches: refresh them"))
    if tree is not None:
        findings += _tree_findings(stack, tree, sound=not findings)
    return Report(tuple(patches), tuple(findings), tree is not None)


def _header_findings(patch: Patch, project: Path) -> list[Finding]:
    """Whether ``Touches`` and ``Test`` say what is so."""
    findings = []
    touched = [change.path for change in patch.changes]
    if patch.header.get("Touches") and sorted(patch.header["Touches"].split()) != sorted(set(touched)):
        findings.append(Finding(patch.name, "touches", f"the header does not list {' '.join(sorted(set(touched)))}"))
    for path in sorted({path for path in touched if touched.count(path) > 1}):
        findings.append(Finding(patch.name, "listed twice", f"{path} has two diffs"))
    for test in patch.header.get("Test", "").split():
        if not (project / test.partition("::")[0]).is_file():
            findings.append(Finding(patch.name, "missing test", f"{test} is not there"))
    return findings


def _chain_findings(stack: Stack, patches: list[Patch]) -> list[Finding]:
    """Whether every file's blob ids lead from the lock through the patches without a gap."""
    findings = []
    now: dict[str, Entry] = dict(stack.lock.files)
    for patch in patches:
        for change in patch.changes:
            before = now.get(change.path)
            if before is None:
                findings.append(Finding(LOCK, "unlisted file", f"{change.path}, which {patch.name} touches"))
            elif before.blob != change.old:
                text = f"{change.path} was {before.blob[:8]} before this patch, its index line says {change.old[:8]}"
                findings.append(Finding(f"{patch.name}:{change.line}", "wrong blob", text))
            elif before.mode != change.old_mode:
                text = f"{change.path} has mode {before.mode} before this patch, which says {change.old_mode}"
                findings.append(Finding(f"{patch.name}:{change.line}", "file mode", text))
            now[change.path] = Entry(change.mode, change.new)
    touched = {change.path for patch in patches for change in patch.changes}
    findings += [
        Finding(LOCK, "untouched file", f"{path} is in no patch") for path in stack.lock.files.keys() - touched
    ]
    return findings


def lock_files(tree: Tree, commit: str, patches: list[Patch]) -> Mapping[str, Entry]:
    """The touched files as they are in ``commit``."""
    return {change.path: tree.entry(commit, change.path) for patch in patches for change in patch.changes}


def _tree_findings(stack: Stack, tree: Tree, *, sound: bool) -> list[Finding]:
    """The lock against the tree; apply and export, byte for byte."""
    pin = stack.lock.commit
    if not tree.has(pin):
        return [Finding(LOCK, "unknown commit", f"{tree.path} does not have {pin[:8]}")]
    findings = []
    for path, entry in stack.lock.files.items():
        found = tree.entry(pin, path)
        if found != entry:
            is_there = "absent" if found == NO_FILE else f"{found.mode} {found.blob[:8]}"
            text = f"{path} is {is_there} in {pin[:8]}, not {entry.mode} {entry.blob[:8]}"
            findings.append(Finding(LOCK, "file mode" if found.blob == entry.blob else "wrong blob", text))
    if not sound:
        return findings  # a stack with faults need not apply
    try:
        for commit in build(tree, pin, {name: stack.texts[name] for name in stack.names}):
            if export(tree, commit.id) != stack.texts[commit.patch]:
                text = "applied and exported it is another file: refresh the patch"
                findings.append(Finding(commit.patch, "round trip", text))
    except LeonardoError as error:
        findings.append(Finding(str(tree.path), "does not apply", str(error)))
    except GitCommandError as error:
        findings.append(Finding(str(tree.path), "does not apply", reason(error)))
    return findings
