"""Does a file that is there before the agent begins tell what the verifier expects, or how the task is solved?

Two kinds of fragment are looked for, and what the agent is told or given anyway is no leak:

* **Lines** of verifier and reference solution, at least :data:`LINE` characters and no import. A file that holds
  :data:`FEWEST` of them and a quarter of them all is a copy. A file that the instruction names is given to the agent,
  and a solution often rewrites it nearly whole: there nearly all lines must be there.
* **Literals** that the verifier expects, at least :data:`LITERAL` characters, not in the instruction. In a file that
  consists of expected literals to a quarter they are an answer key; elsewhere they are data, and listed only.

Encoded copies are found where the encoding is base64. Compressed and encrypted ones are not.
"""

import base64
import binascii
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from leonardo.gates.instructions import names
from leonardo.gates.literals import read_verifier
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files

LINE = 24
FEWEST = 3
LITERAL = 12
MOST_BYTES = 16 << 20
"""Files longer than this are not searched; they are named."""

_SHARE = 0.25
_NEARLY_ALL = 0.95
_SHORT = 4  # a literal that counts towards an answer key, but does not make one
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{40,}(?:\s[A-Za-z0-9+/_-]{20,})*={0,2}")
_IMPORT = re.compile(r"(?:from\s+\S+\s+)?import\s|#include\b|use\s")
# names of files that hold verifiers and solutions in this data set and those like it
_NAMES = re.compile(r"(?:test_final_state|test_initial_state|test_outputs?)(?:\.py|\.sh)?|solution\.sh|solve\.sh", re.I)


@dataclass(frozen=True)
class Leak:
    """A fragment in a file."""

    path: str
    what: str
    fragment: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}: {self.fragment}"


class LeakSearch:
    """Knows what to look for in the files of one task."""

    def __init__(self, task: Task) -> None:
        self._instruction = task.instruction
        own = {text for files in (verifier_files("#!"), verifier_files("")) for text in files.values()}
        tests = [content.decode(errors="replace") for content in task.tests.values() if content not in own]
        self._texts = {"the verifier": self._lines(tests)}
        if task.reference_solution is not None:
            self._texts["the reference solution"] = self._lines([task.reference_solution])
        expected = {literal for text in tests for literal in read_verifier(text).expected}
        self._expected = sorted((literal for literal in expected if len(literal) >= _SHORT), key=len, reverse=True)
        self._specific = [literal for literal in self._expected if self._is_specific(literal)]

    def search(self, path: str, content: bytes) -> tuple[list[Leak], list[Leak]]:
        """What a file gives away: leaks, and literals that are listed only."""
        leaks, listed = [], []
        if _NAMES.fullmatch(PurePosixPath(path).name) and not names(self._instruction, path):
            leaks.append(Leak(path, "named as a verifier or solution is", PurePosixPath(path).name))
        for text, how in _readings(content):
            leaks += self._copies(path, text, how)
            dense, sparse = self._literals(path, text, how)
            leaks += dense
            listed += sparse
        return leaks, listed

    def _lines(self, texts: Iterable[str]) -> list[str]:
        lines = {line.strip() for text in texts for line in text.splitlines()}
        return sorted(
            line
            for line in lines
            if len(line) >= LINE and not _IMPORT.match(line) and line not in self._instruction and "/logs/" not in line
        )

    def _is_specific(self, literal: str) -> bool:
        long_enough = len(literal) >= (6 if re.fullmatch(r"-?\d+(?:\.\d+)?", literal) else LITERAL)
        return long_enough and literal not in self._instruction

    def _copies(self, path: str, text: str, how: str) -> Iterable[Leak]:
        lines = {line.strip() for line in text.splitlines()}
        for name, wanted in self._texts.items():
            found = [line for line in wanted if line in lines]
            share = len(found) / len(wanted) if wanted else 0.0
            needed = _NEARLY_ALL if names(self._instruction, path) else _SHARE
            if found and share >= needed and len(found) >= min(FEWEST, len(wanted)):
                yield Leak(path, f"{len(found)} of {len(wanted)} lines of {name}{how}", max(found, key=len)[:160])

    def _literals(self, path: str, text: str, how: str) -> tuple[list[Leak], list[Leak]]:
        found = [literal for literal in self._specific if literal in text]
        if not found:
            return [], []
        covered = sum(len(literal) * text.count(literal) for literal in self._expected if literal in text)
        length = len("".join(text.split()))
        leak = Leak(path, f"{len(found)} literals that the verifier expects{how}", found[0][:160])
        if covered >= _SHARE * length and not names(self._instruction, path):
            return [leak], []
        return [], [leak]


def _readings(content: bytes) -> Iterable[tuple[str, str]]:
    """A file as text, and what it holds in base64."""
    yield content.decode(errors="replace"), ""
    for token in _BASE64.findall(content[: 1 << 20]):
        packed = b"".join(token.split()).translate(bytes.maketrans(b"-_", b"+/"))
        try:
            decoded = base64.b64decode(packed + b"=" * (-len(packed) % 4))
        except (binascii.Error, ValueError):
            continue
        if decoded.isascii() and len(decoded) >= LINE:
            yield decoded.decode(), ", in base64"
