"""A set-up script in two parts: the packages that it begins with, and the rest.

Thousands of rows begin with the same few package installs. Those are recognised where they are plain, up to the first
line that is anything else; a line that is not understood whole belongs to the rest. Nothing is moved across anything:
the packages come first in the script, and they come first in the layers.
"""

import re
import shlex
from dataclasses import dataclass, replace
from typing import Literal

CORE = frozenset(("python3", "python3-pip"))
"""Packages of nearly every row: a layer of their own below a row's other packages."""

MOST_STEPS = 6
"""More layers than twice that do not fit into a mount's options where paths are long; such a script stays whole."""

_APT = ("apt-get", "apt")
_APT_NOISE = frozenset(("-y", "-yq", "-qy", "-yqq", "-qqy", "-q", "-qq", "--yes", "--assume-yes", "--quiet"))
_APT_FLAGS = frozenset(("--no-install-recommends", "--no-install-suggests"))
_PIP = (("pip",), ("pip3",), ("python3", "-m", "pip"), ("python", "-m", "pip"))
_PIP_NOISE = frozenset(("-q", "-qq", "--quiet", "--no-cache-dir", "--disable-pip-version-check"))
_PIP_FLAGS = frozenset(("--break-system-packages",))
_HARMLESS = re.compile(r"(?:export\s+)?DEBIAN_FRONTEND=\"?noninteractive\"?|set\s+-[eux]+")
_ASSIGNMENT = "DEBIAN_FRONTEND=noninteractive"
_NAME = re.compile(r"[a-z0-9][a-z0-9+.-]*")
_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9,._-]+\])?(?:[=<>!~]=?[A-Za-z0-9.*]+,?)*")
_READS_LISTS = re.compile(r"\bapt\b|\bapt-get\b|\bapt-cache\b|\baptitude\b")


@dataclass(frozen=True)
class PackageStep:
    """One install, in normal form: sorted names, and the flags that make a difference.

    Attributes:
        tool: ``apt`` or ``pip``.
        program: the words that call pip; apt is always ``apt-get``.
    """

    tool: Literal["apt", "pip"]
    names: tuple[str, ...]
    flags: tuple[str, ...] = ()
    program: tuple[str, ...] = ("apt-get",)

    @property
    def script(self) -> str:
        """Installs it, as a set-up."""
        words = " ".join(shlex.quote(word) for word in (*self.flags, *self.names))
        if self.tool == "apt":
            return f"apt-get update\napt-get install -y {words}\n"
        return f"{' '.join(self.program)} install {words}\n"

    def parts(self) -> tuple["PackageStep", ...]:
        """The core packages and the others, where there are both; else the step itself."""
        names = set(self.names)
        if self.tool != "apt" or not names > CORE:
            return (self,)
        return replace(self, names=tuple(sorted(CORE))), replace(self, names=tuple(sorted(names - CORE)))


@dataclass(frozen=True)
class Split:
    """A script in two parts.

    Attributes:
        steps: package installs, in the order of the script; none where it begins with something else.
        rest: what is left to be run on top of them, ``""`` if nothing is. Line numbers are the script's.
    """

    steps: tuple[PackageStep, ...]
    rest: str


def split(script: str) -> Split:
    """Split a set-up script, a definition's ``%post``. One for another interpreter than the shell stays whole."""
    if script.startswith("#!"):
        return Split((), script)
    kept: list[str] = []
    steps: list[PackageStep] = []
    lines = script.splitlines(keepends=True)
    number = 0
    while number < len(lines):
        end = number + 1
        while lines[end - 1].rstrip("\n").endswith("\\") and end < len(lines):
            end += 1
        logical = "".join(lines[number:end]).replace("\\\n", " ")
        if not logical.strip() or logical.lstrip().startswith("#") or _HARMLESS.fullmatch(logical.strip()):
            kept += lines[number:end]
        elif (found := _installs(logical)) is not None:
            steps += found
            kept += ["\n"] * (end - number)
        else:
            break
        number = end
    merged = _merged(steps)
    if not 0 < len(merged) <= MOST_STEPS:
        return Split((), script)
    rest = "".join([*kept, *lines[number:]])
    if not "".join(lines[number:]).strip():
        rest = ""
    elif _READS_LISTS.search("".join(lines[number:])):
        rest = "apt-get update;" + rest  # what is left may use the lists, which no layer holds
    return Split(merged, rest)


def _installs(line: str) -> list[PackageStep] | None:
    """The installs of a line, ``None`` where the line holds anything that is not understood."""
    try:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>()")
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:
        return None
    steps: list[PackageStep] = []
    command: list[str] = []
    for word in [*words, ";"]:
        if word in ("&&", ";"):
            if command:
                step = _install(command)
                if step is None:
                    return None
                steps += step
            command = []
        else:
            command.append(word)
    return steps


def _install(words: list[str]) -> list[PackageStep] | None:
    while words and words[0] == _ASSIGNMENT:
        words = words[1:]
    if words[-2:] == [">", "/dev/null"]:
        words = words[:-2]
    if words == ["rm", "-rf", "/var/lib/apt/lists/*"]:
        return []
    if words and words[0] in _APT:
        return _apt_install([word for word in words[1:] if word not in _APT_NOISE])
    for program in _PIP:
        if tuple(words[: len(program)]) == program:
            return _pip_install(program, [word for word in words[len(program) :] if word not in _PIP_NOISE])
    return None


def _apt_install(words: list[str]) -> list[PackageStep] | None:
    if words in (["update"], ["clean"]):
        return []
    if "install" not in words:
        return None
    words = [word for word in words if word != "install"]
    flags = sorted({word for word in words if word in _APT_FLAGS})
    names = sorted({word for word in words if word not in _APT_FLAGS})
    if not names or not all(_NAME.fullmatch(name) and re.search(r"-$|(?<!\+)\+$", name) is None for name in names):
        return None
    return [PackageStep("apt", tuple(names), tuple(flags))]


def _pip_install(program: tuple[str, ...], words: list[str]) -> list[PackageStep] | None:
    if words[:1] != ["install"]:
        return None
    flags = sorted({word for word in words[1:] if word in _PIP_FLAGS})
    names = sorted({word for word in words[1:] if word not in _PIP_FLAGS})
    if not names or not all(_REQUIREMENT.fullmatch(name) for name in names):
        return None
    return [PackageStep("pip", tuple(names), tuple(flags), program)]


def _merged(steps: list[PackageStep]) -> tuple[PackageStep, ...]:
    """Neighbours of one kind as one: what they install together is what they install one after the other."""
    merged: list[PackageStep] = []
    for step in steps:
        last = merged[-1] if merged else None
        if last and (last.tool, last.flags, last.program) == (step.tool, step.flags, step.program):
            merged[-1] = replace(last, names=tuple(sorted({*last.names, *step.names})))
        else:
            merged.append(step)
    return tuple(merged)
