"""What the patches call: names of ``leonardo`` in inserted lines, and whether they are there."""

import importlib
import re
from dataclasses import dataclass

from leonardo.overlay.patchfile import Finding, Patch

SURFACE = "leonardo.hooks"
"""The only package of ours that a patch may import from."""

_FROM = re.compile(r"\bfrom (leonardo(?:\.\w+)*) import \(?([\w ,]+)")
_IMPORT = re.compile(r"\bimport (leonardo(?:\.\w+)*)")


@dataclass(frozen=True)
class Hook:
    """A name that a patch imports: its module and the name in it (``""`` for the module itself)."""

    patch: str
    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


def hooks_of(patch: Patch) -> list[Hook]:
    """The hooks of a patch, in the order of its lines."""
    found: dict[Hook, None] = {}
    for change in patch.changes:
        for line in change.inserted.values():
            for match in _FROM.finditer(line):
                names = (part.split(" as ")[0].strip() for part in match[2].split(","))
                found |= {Hook(patch.name, match[1], name): None for name in names if name}
            if not _FROM.search(line):
                found |= {Hook(patch.name, match[1], ""): None for match in _IMPORT.finditer(line)}
    return list(found)


def hook_findings(patch: Patch) -> list[Finding]:
    """Hooks that are outside of :data:`SURFACE`, or cannot be imported."""
    findings = []
    for hook in hooks_of(patch):
        if not f"{hook.module}.".startswith(f"{SURFACE}."):
            findings.append(Finding(patch.name, "hook outside of leonardo.hooks", str(hook)))
            continue
        try:
            module = importlib.import_module(hook.module)
            if hook.name and not hasattr(module, hook.name):
                importlib.import_module(f"{hook.module}.{hook.name}")
        except ImportError as error:
            text = f"{hook} cannot be imported ({error})"
            findings.append(Finding(patch.name, "hook to a missing function", text))
    return findings
