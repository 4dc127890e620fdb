"""The commands of a shell script, so that a rule matches what is run and not what is written, printed or remarked.

This is no shell: it knows quotes, comments, here-documents, line continuations and what separates commands. What it
does not see (a command in a string for ``bash -c``, in a variable, behind ``eval``) no rule matches.
"""

import re
from dataclasses import dataclass, replace

_HERE_DOCUMENT = re.compile(r"<<(-?)[ \t]*(?:\\?([\w.]+)|'([^'\n]*)'|\"([^\"\n]*)\")")
_SEPARATOR = re.compile(r"&&|\|\||;;|[;|&()\n]")
_LEADING_WORDS = re.compile(
    r"(?:(?:then|do|else|elif|if|while|until|!|\{|time|exec|command|nohup|env)\s+|[A-Za-z_]\w*=(?:\"[^\"]*\"|'[^']*'|\S*)\s+)+"
)
_ASKED = re.compile(r"(?:[\s{]|then|do|else)*(?:if|elif|while|until|!)\s")
_BLANK = "\0"


@dataclass(frozen=True)
class Command:
    """A command of a script.

    Attributes:
        text: its words, without keywords and assignments before them; quoted parts as they are written.
        line: the number of its first line, from 1.
        start, end: where ``text`` is in the script.
        fatal: whether its failure ends the script, which runs under ``-e`` unless it has a shebang line or says
            ``set +e``, where nothing (``||``, ``&&``, ``|``, ``if``) looks at it.
    """

    text: str
    line: int
    start: int
    end: int
    fatal: bool


def commands_of(script: str) -> list[Command]:
    """Every command of ``script``, in order. Quoted text, comments and here-documents hold none."""
    masked = _masked(script)
    found: list[Command] = []
    start, ends_script = 0, not script.startswith("#!")
    for separator in [*_SEPARATOR.finditer(masked), None]:
        end = separator.start() if separator else len(masked)
        mark = separator.group() if separator else "\n"
        if (command := _command(script, masked, start, end, mark)) is not None:
            if match := re.match(r"set\s+([+-])\w*e", command.text):
                ends_script = match.group(1) == "-"
            found.append(command if ends_script else replace(command, fatal=False))
        start = separator.end() if separator else end
    return found


def _command(script: str, masked: str, start: int, end: int, mark: str) -> Command | None:
    piece = masked[start:end]
    first = start + len(piece) - len(piece.lstrip())
    leading = _LEADING_WORDS.match(script, first, end)
    at = leading.end() if leading else first
    text = script[at : at + len(masked[at:end].rstrip())]
    if not text:
        return None
    asked = _ASKED.match(script, first, end) is not None
    fatal = mark not in ("&&", "||", "|", "&") and not asked
    return Command(text, script.count("\n", 0, at) + 1, at, at + len(text), fatal)


def _masked(script: str) -> str:
    """``script``, character for character, with all that separates nothing blanked out."""
    out: list[str] = []
    waiting: list[tuple[str, bool]] = []  # here-documents that begin with the next line: delimiter, tabs are stripped
    place = 0
    while place < len(script):
        rest = script[place]
        if rest == "\\":
            step = script[place : place + 2]
            out.append("  " if step == "\\\n" else _BLANK * len(step))
            place += len(step)
        elif rest in "'\"":
            end = _closing(script, place)
            out.append(_BLANK * (end - place))
            place = end
        elif rest == "#" and (place == 0 or script[place - 1] in " \t\n;&|("):
            end = script.find("\n", place)
            end = len(script) if end < 0 else end
            out.append(" " * (end - place))
            place = end
        elif match := (_HERE_DOCUMENT.match(script, place) if not script.startswith("<<<", place) else None):
            waiting.append((match.group(2) or match.group(3) or match.group(4) or "", bool(match.group(1))))
            out.append(_BLANK * len(match.group()))
            place = match.end()
        elif rest == "<" and script.startswith("<<<", place):
            out.append(_BLANK * 3)
            place += 3
        elif rest == "\n":
            out.append("\n")
            place += 1
            for delimiter, tabs in waiting:
                end = _end_of_document(script, place, delimiter, tabs)
                out.append(" " * (end - place))
                place = end
            waiting = []
        elif rest in "&>" and re.match(r"&>|>&|<&", script[place : place + 2]):
            out.append(_BLANK * 2)  # a redirection, which ends no command
            place += 2
        else:
            out.append(rest)
            place += 1
    return "".join(out)


def _closing(script: str, place: int) -> int:
    """Where the quoted text that begins at ``place`` ends; the script's end where it does not."""
    quote = script[place]
    place += 1
    while place < len(script):
        if script[place] == quote:
            return place + 1
        place += 2 if quote == '"' and script[place] == "\\" else 1
    return len(script)


def _end_of_document(script: str, place: int, delimiter: str, tabs: bool) -> int:
    while place < len(script):
        end = script.find("\n", place)
        end = len(script) if end < 0 else end
        line = script[place:end]
        place = min(end + 1, len(script))
        if (line.lstrip("\t") if tabs else line) == delimiter:
            return place
    return len(script)
