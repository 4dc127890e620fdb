"""What a desk family is made of: closed pools of words, a small world of files, and the state it must end in.

A family is a function from a few drawn words to a :class:`Scene`. The scene says which files there are before and
after; set-up and verifier follow from that, so that "fails on the initial state" and "checks the whole content" hold
for every family alike. Only what is no file content (modes, links, processes) needs conditions of its own.

Mistakes differ from the reference in a flag or a tool, never in which word of the instruction is copied: copying is
what a tiny model learns from all demonstrations together, choosing well is what is left to reinforcement learning.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

# Words of one token each for a tokenizer trained on the corpus, none of them also a word of a phrasing or a command.
FOLDERS = (
    "attic",
    "barn",
    "cellar",
    "dock",
    "farm",
    "garden",
    "harbor",
    "island",
    "kitchen",
    "lake",
    "market",
    "tower",
)
STEMS = (
    "apple", "bear", "cedar", "delta", "eagle", "falcon", "grape", "heron",
    "iris", "jade", "koala", "lemon", "maple", "otter", "pearl", "robin",
)  # fmt: skip
WORDS = (
    "amber", "brisk", "calm", "dusty", "early", "fuzzy", "gentle", "happy",
    "icy", "jolly", "kind", "lucky", "mellow", "noble", "olive", "proud",
)  # fmt: skip
KEYS = ("depth", "height", "level", "limit", "port", "rate", "speed", "width")
NUMBERS = tuple(str(number) for number in range(21, 99, 7))
MODES = ("400", "440", "444", "600", "640", "644", "700", "750", "755")
COUNTS = ("2", "3", "4")
KINDS = ("bak", "log", "old", "tmp")

Lines = tuple[str, ...]
Commands = tuple[str, ...]


@dataclass(frozen=True)
class Scene:
    """One instance of a family.

    Attributes:
        phrasings: equivalent instructions; one is chosen by the instance's digest.
        files: path -> lines, before.
        after: path -> lines (``None``: absent), where that differs; every other file must be unchanged.
        solution: the reference, a command a step.
        right, wrong: other command sequences that pass, and plausible mistakes that do not.
        partial: sequences that stop early.
        set_up: shell lines for what is no file with lines; run after the files are there, harmless when run twice.
        checks: shell conditions for what is no file with lines.
    """

    phrasings: tuple[str, ...]
    solution: Commands
    files: Mapping[str, Lines] = field(default_factory=dict)
    after: Mapping[str, Lines | None] = field(default_factory=dict)
    right: tuple[Commands, ...] = ()
    wrong: tuple[Commands, ...] = ()
    partial: tuple[Commands, ...] = ()
    set_up: Lines = ()
    checks: Lines = ()

    @property
    def definition(self) -> str:
        """The Apptainer definition that makes the initial state."""
        folders = sorted({path.rpartition("/")[0] for path in self.files})
        script = [f"mkdir -p {folder}" for folder in folders]
        script += [f"{printed(lines)} > {path}" for path, lines in self.files.items()]
        script += self.set_up
        return "Bootstrap: docker\nFrom: ubuntu:22.04\n\n%post\n" + "".join(f"    {line}\n" for line in script)

    @property
    def verifier(self) -> str:
        """A bash script that exits 0 in the final state, else names the first thing that is not as it must be."""
        files = {**self.files, **self.after}
        steps = [f"{holds(path, lines)} || wrong {path}" for path, lines in files.items()]
        steps += [f"{condition} || wrong {quoted(condition)}" for condition in self.checks]
        return "\n".join(["#!/bin/bash", 'wrong() { echo "not as it must be: $1"; exit 1; }', *steps, "exit 0"]) + "\n"


@dataclass(frozen=True)
class Family:
    """A kind of task: its name, the pools its words are drawn from, and the function that makes a scene of them.

    ``needs_look`` says that the solution uses something only the file system tells (a name, a value).
    """

    name: str
    slots: Mapping[str, Sequence[str]]
    build: Callable[..., Scene]
    needs_look: bool = False

    @property
    def instances(self) -> int:
        """How many distinct draws there are, both splits together."""
        uses = Counter(self.slots.values())
        return math.prod(math.perm(len(pool), times) for pool, times in uses.items())

    def draw(self, random: Random) -> dict[str, str]:
        """A word for each slot; slots that share a pool get different words."""
        values: dict[str, str] = {}
        for slot, pool in self.slots.items():
            taken = {values[other] for other in values if self.slots[other] is pool}
            values[slot] = random.choice([word for word in pool if word not in taken])
        return values


def family(
    name: str, /, *, needs_look: bool = False, **slots: Sequence[str]
) -> Callable[[Callable[..., Scene]], Family]:
    """Make a :class:`Family` of a function ``(random, **words) -> Scene``; ``random`` is seeded by the words."""
    return lambda build: Family(name, slots, build, needs_look)


def quoted(text: str) -> str:
    """``text`` as one single-quoted shell word."""
    return "'" + text.replace("'", "'\\''") + "'"


def printed(lines: Lines) -> str:
    """A command that prints ``lines``."""
    return " ".join(["printf '%s\\n'", *map(quoted, lines)])


def holds(path: str, lines: Lines | None) -> str:
    """Condition: ``path`` is a real file, under no link, with exactly ``lines``; or it is absent."""
    if lines is None:
        return f"[ ! -e {path} ]"
    return f'[ "$(readlink -f {path})" = {path} ] && [ -f {path} ] && [ "$(cat {path})" = "$({printed(lines)})" ]'


def some_words(random: Random, count: int, but: Sequence[str] = ()) -> list[str]:
    """``count`` different content words, none of ``but``."""
    return random.sample([word for word in WORDS if word not in but], count)


def some_lines(random: Random, count: int, but: Sequence[str] = ()) -> Lines:
    """``count`` different lines of two words each, without the words ``but``."""
    firsts = some_words(random, count, but)
    return tuple(f"{first} {some_words(random, 1, [*but, first])[0]}" for first in firsts)
