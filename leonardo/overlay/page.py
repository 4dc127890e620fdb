"""``PATCHES.md``: what each patch hooks and why, generated from the headers."""

from leonardo.overlay.hooks import hooks_of
from leonardo.overlay.patchfile import FIELDS, Patch
from leonardo.overlay.stack import Stack

PAGE = "PATCHES.md"

_HEAD = """\
# Patches

Generated from the headers of the files in `patches/` by the overlay's own commands; do not edit it here.

The stack inserts {lines} lines into {files} files of upstream at `{pin}`. A patch adds lines or files, and never
changes or removes a line, so it holds no line of upstream and cannot take back upstream's work. The inserted lines
call `leonardo.hooks`; the logic and its tests are in this repository. `make diff` shows them with upstream around.

| | |
|---|---|
| `make apply-patches` | put the stack on the checkout in `upstream/` (`make upstream` fetches it) |
| `make unapply-patches` | leave the checkout as it was fetched |
| `make diff [PATCH=...]` | the inserted lines in their context |
| `make new-patch NAME=area-verb` | begin a patch at the end of the stack |
| `make refresh-patches [PATCH=...]` | write edits made in `upstream/` back to the last patch, or to the one named |
| `make rebase-patches ONTO=...` | carry the stack to another commit of upstream |
| `make check-patches` | hold the stack to its rules; needs no checkout |
| `make continue-patches`, `make abort-patches` | after a conflict or an interruption: go on, go back |

Each file is a mail as `git format-patch -U0` writes it. `git apply --unidiff-zero`, GNU patch and `quilt push -a` take
it. While they are applied, git shows `upstream` as changed; do not add it: its pin is the commit without the patches.
Do not use `git am`: it has no `--unidiff-zero`, and silently puts an insertion without context at a file's end.
"""


def render_page(stack: Stack) -> str:
    """The page's text."""
    changes = [change for patch in stack.patches for change in patch.changes]
    head = _HEAD.format(
        lines=sum(len(change.inserted) for change in changes),
        files=len({change.path for change in changes}),
        pin=stack.lock.commit[:8],
    )
    return "\n".join([head, *(_section(patch) for patch in stack.patches)])


def _section(patch: Patch) -> str:
    hooks = ", ".join(f"`{hook}`" for hook in hooks_of(patch)) or "none"
    lines = [f"## {patch.name.removesuffix('.patch')}", "", patch.header.get("Description", ""), ""]
    for change in patch.changes:
        how = "in a new file" if change.created else "inserted"
        lines.append(f"- `{change.path}`: {_count(len(change.inserted))} {how}")
    lines.append(f"- Hooks: {hooks}")
    for field in FIELDS[1:]:
        if field != "Touches":
            lines.append(f"- {field}: {patch.header.get(field, '')}")
    return "\n".join(lines) + "\n"


def _count(lines: int) -> str:
    return f"{lines} line" if lines == 1 else f"{lines} lines"
