"""A patch file: a mail that ``git format-patch -U0`` would write, without function headings, with a DEP-3-like header.

Reading is strict, and a fault is a :class:`Finding`, not an exception, so that all of them can be shown at once.
"""

import hashlib
import re
from dataclasses import dataclass, field
from email import message_from_string, policy

from leonardo.overlay.entries import ABSENT, ABSENT_MODE

TEMPLATE = {
    "Description": "what it inserts",
    "Why": "what upstream lacks",
    "Upstream-Status": "not-submitted (say why)",
    "Drop-When": "what makes it needless",
    "Touches": "-",
    "Test": "tests/...",
}
"""The header of a new patch, to be filled in; ``Touches`` is written by the overlay's commands."""

FIELDS = tuple(TEMPLATE)
"""The header's fields, in their order; every patch has all of them."""

STATUSES = ("not-submitted", "submitted", "accepted", "rejected", "inappropriate")
"""How ``Upstream-Status`` begins; its reason follows in brackets."""

NAME = re.compile(r"(\d{4})-([a-z0-9]+)-[a-z0-9]+(-[a-z0-9]+)*\.patch")
"""``NNNN-area-verb.patch``."""

_FIELD = re.compile(r"([A-Z][A-Za-z-]*): (.*)")
_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)")
_INDEX = re.compile(r"index ([0-9a-f]{40})\.\.([0-9a-f]{40})(?: (\d{6}))?")
_MODES = ("100644", "100755")
_FORBIDDEN = ("old mode", "new mode", "deleted file mode", "rename ", "copy ", "similarity ", "GIT binary", "Binary ")


@dataclass(frozen=True)
class Finding:
    """A fault of the stack: where it is, its kind in two or three words, and what is wrong and to be done."""

    where: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.kind}: {self.text}"


@dataclass
class Change:
    """What a patch does to one file: blob ids before and after, and the inserted lines by their new line number."""

    path: str
    mode: str = ""
    old: str = ABSENT
    new: str = ABSENT
    created: bool = False
    inserted: dict[int, str] = field(default_factory=dict)
    line: int = 0
    """Line of the patch file at which it begins."""

    @property
    def old_mode(self) -> str:
        """The file's mode before."""
        return ABSENT_MODE if self.created else self.mode


@dataclass
class Patch:
    """A patch as read. ``removed_lines`` and ``context_lines`` count what a sound patch has none of."""

    name: str
    subject: str = ""
    header: dict[str, str] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    removed_lines: int = 0
    context_lines: int = 0

    @property
    def number(self) -> int:
        """The number that its name begins with."""
        return int(self.name[:4]) if NAME.fullmatch(self.name) else -1

    def fault(self, line: int, kind: str, text: str) -> None:
        """Add a finding at a line of the file."""
        self.findings.append(Finding(f"{self.name}:{line}" if line else self.name, kind, text))


def parse_header(message: str) -> dict[str, str]:
    """The fields of a commit message or mail body; a field's further lines begin with a space."""
    header: dict[str, str] = {}
    name = ""
    for line in message.splitlines():
        if match := _FIELD.fullmatch(line):
            name = match[1]
            header[name] = match[2].strip()
        elif name and line.startswith(" "):
            header[name] += f" {line.strip()}"
        else:
            name = ""
    return header


def read_patch(name: str, data: bytes) -> Patch:
    """Read a patch file. What is wrong with it is in ``findings``."""
    patch = Patch(name)
    if not NAME.fullmatch(name):
        patch.fault(0, "name", "a patch is called NNNN-area-verb.patch, in lower case")
    if b"\r" in data:
        patch.fault(
            data[: data.index(b"\r")].count(b"\n") + 1, "CRLF", "lines end with a carriage return: use \\n alone"
        )
        data = data.replace(b"\r\n", b"\n")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        patch.fault(0, "encoding", "the file is not UTF-8")
        return patch
    if not text.endswith("\n"):
        patch.fault(text.count("\n") + 1, "no final newline", "the file ends within a line")
    lines = text.split("\n")
    start = next((number for number, line in enumerate(lines) if line.startswith("diff --git ")), len(lines))
    _read_mail(patch, "\n".join(lines[:start]))
    _Diff(patch).read(lines[:-1] if lines[-1] == "" else lines, start)
    return patch


def _read_mail(patch: Patch, text: str) -> None:
    """Subject and header fields."""
    start, _, rest = text.partition("\n")
    if not start.startswith(f"From {ABSENT} "):
        patch.fault(1, "not a mail", "the first line is not that of git format-patch --zero-commit: refresh the patch")
        rest = text
    mail = message_from_string(rest, policy=policy.default)
    body = str(mail.get_payload())
    patch.subject = re.sub(r"^\[PATCH\] ", "", " ".join(str(mail["Subject"] or "").split()))
    for field_name in ("From", "Date", "Subject"):
        if not mail[field_name]:
            patch.fault(1, "missing header field", f"the mail has no {field_name}")
    patch.header = parse_header(body)
    for field_name in FIELDS:
        if patch.header.get(field_name, "") in ("", TEMPLATE[field_name]):
            patch.fault(0, "missing header field", f"the header has no {field_name}, or it is not filled in")
    for field_name in patch.header.keys() - set(FIELDS):
        patch.fault(0, "unknown header field", f"{field_name} is none of {', '.join(FIELDS)}")
    status = patch.header.get("Upstream-Status", "")
    if status and not re.fullmatch(rf"({'|'.join(STATUSES)}) \(.+\)", status):
        patch.fault(0, "upstream status", f"begin with one of {', '.join(STATUSES)} and give the reason in brackets")
    for number, line in enumerate(text.split("\n"), 1):
        if line != line.rstrip():
            patch.fault(number, "trailing blank", "the line ends with a blank")


class _Diff:
    """Reads the part of a patch file that follows the mail's text."""

    def __init__(self, patch: Patch) -> None:
        self._patch = patch
        self._change = Change("")
        self._left = 0
        """Inserted lines that the hunk still promises."""
        self._next = 0
        """New line number of the next inserted line."""

    def read(self, lines: list[str], start: int) -> None:
        """Read ``lines`` from ``start``."""
        for number in range(start, len(lines)):
            line = lines[number]
            if line.startswith("diff --git "):
                self._begin(line, number + 1)
            elif self._left and line.startswith("+"):
                self._insert(line[1:], number + 1)
            else:
                self._other(line, number + 1)
        self._end(len(lines))
        if not self._patch.changes:
            self._patch.fault(0, "empty", "the patch changes no file")

    def _begin(self, line: str, number: int) -> None:
        self._end(number)
        match = re.fullmatch(r"diff --git a/(\S+) b/\1", line)
        if not match:
            self._patch.fault(number, "file name", "old and new name differ, or hold blanks or quotes")
        self._change = Change(match[1] if match else line, line=number)
        self._patch.changes.append(self._change)

    def _insert(self, text: str, number: int) -> None:
        self._change.inserted[self._next] = text
        self._next += 1
        self._left -= 1
        if text != text.rstrip():
            self._patch.fault(number, "trailing blank", "the inserted line ends with a blank")
        if re.match(r" *\t", text) and self._change.path.endswith(".py"):
            self._patch.fault(number, "tab", "the inserted line is indented with a tab")

    def _other(self, line: str, number: int) -> None:
        fault, change = self._patch.fault, self._change
        if match := _HUNK.fullmatch(line):
            self._hunk(match, number)
        elif match := _INDEX.fullmatch(line):
            change.old, change.new = match[1], match[2]
            change.mode = change.mode or match[3] or ""
        elif line.startswith("new file mode "):
            change.created, change.mode = True, line.removeprefix("new file mode ")
            if change.mode not in _MODES:
                fault(number, "file mode", f"a new file has mode {' or '.join(_MODES)}, not {change.mode}")
        elif line in (f"+++ b/{change.path}", "--- /dev/null" if change.created else f"--- a/{change.path}"):
            pass
        elif line.startswith(("old mode", "new mode")):
            fault(number, "file mode", "the patch changes a file's mode; only insert lines")
        elif line.startswith(_FORBIDDEN):
            fault(number, "not an insertion", f"only text is inserted: {line.split()[0].lower()} has no place here")
        elif line.startswith("-"):
            self._patch.removed_lines += 1
            fault(number, "removed line", "a patch only inserts: " + HOW_TO_INSERT)
        elif line.startswith(" ") or line == "":
            self._patch.context_lines += 1
            fault(number, "context line", "a line of upstream has no place here: refresh the patch")
        elif line.startswith("\\"):
            fault(number, "no final newline", "the inserted text ends within a line")
        else:
            fault(number, "not a patch line", "this is no line of git format-patch -U0: refresh the patch")

    def _hunk(self, match: re.Match[str], number: int) -> None:
        self._promise(number)
        old, added = int(match[2] or 1), int(match[4] or 1)
        if match[5]:
            self._patch.fault(number, "heading", "text after the hunk's @@ is a line of upstream: refresh the patch")
        if old:
            self._patch.fault(number, "removed line" if added < old else "context line", "the hunk covers old lines")
        self._left, self._next = added, int(match[3])

    def _promise(self, number: int) -> None:
        if self._left:
            self._patch.fault(number, "hunk length", f"the hunk before announces {self._left} more lines")
        self._left = 0

    def _end(self, number: int) -> None:
        self._promise(number)
        change, fault = self._change, self._patch.fault
        if not change.path:
            return
        if change.mode not in _MODES:
            fault(
                change.line, "file mode", f"{change.path}: mode {change.mode or 'missing'}, not {' or '.join(_MODES)}"
            )
        if change.new == ABSENT:
            fault(change.line, "wrong blob", f"{change.path} has no whole index line: refresh the patch")
        if change.created != (change.old == ABSENT):
            fault(change.line, "wrong blob", f"{change.path}: a new file, and only that, has {ABSENT[:8]}... before")
        if change.created and change.new != ABSENT and change.new != blob_id("".join(_lines(change))):
            fault(change.line, "wrong blob", f"{change.path}: the index line names other content: refresh the patch")


def _lines(change: Change) -> list[str]:
    return [f"{line}\n" for line in change.inserted.values()]


def blob_id(content: str | bytes) -> str:
    """Git's id of a file with this content."""
    data = content.encode() if isinstance(content, str) else content
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


HOW_TO_INSERT = (
    "insert a line after it that overrides its effect, wrap the imported name, or use a flag or environment variable"
)
"""What to do where a line of upstream would have to change."""
