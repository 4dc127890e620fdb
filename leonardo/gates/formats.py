"""A tool-call format under fuzz: what is rendered is read back, and what is damaged is never read as something else."""

import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from leonardo.rollout.formats import FORMATS, ToolCallError, ToolFormat
from leonardo.rollout.tool_calls import parse_tool_call, render_tool_call

_LONG = 100_000

_AWKWARD = (
    "",
    " ",
    "\n",
    "ls",
    "  spaces around  ",
    "\n\nlines around\n\n",
    "tab\tand\rreturn\r\n",
    "cat > /app/a.txt <<'EOF'\nline 1\n\n  'single' \"double\" `tick` $x \\\nEOF",
    "python3 - <<PY\nprint({'a': [1, \"b\", None], \"c\": True})\nPY\n",
    "echo '{\"name\": \"bash\", \"arguments\": {\"command\": \"ls\"}}' | jq .name",
    "echo '{\"name\": \"bash\", \"parameters\": {}}'; echo }{][",
    "sed -i 's/\\(a\\)\\1/\\&\\n/g' f && grep -P '\\d+\\s\\u00e9' f",
    "echo '<a href=\"x\">&amp;&lt;</a><!-- --><![CDATA[ x ]]>'",
    "bash(command=\"ls\")\nbash(command='ls')",
    "echo naïve Ω 日本語 🎈👩‍👩‍👧 \u200b\u202e",
    "echo '\x85' '\u2028' '\u2029' '\x0b' '\x0c' '\x1c'",
    "echo '\x00'",
    "echo '\ud800'",
    "printf '\\x41\\101\\n' # <|im_end|> <|eot_id|> <|python_tag|> <|endoftext|>",
    "null", "true", "3", "-1.5e3", "[1, 2]", '{"a": 1}', '"quoted"',
    "x" * _LONG,
    "é🎈\n" * (_LONG // 3),
)  # fmt: skip


@dataclass
class RoundTrip:
    """What became of commands that were rendered and read again.

    Attributes:
        carried, refused: how many came back, and how many the renderer would not take.
        wrong: those that came back changed or not at all; there must be none.
    """

    carried: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)


def fuzzed_commands(count: int, seed: int) -> list[str]:
    """``count`` commands, each of another kind of trouble: quotes, here-documents, tags, braces, 100 kB, nothing."""
    random = Random(seed)
    pieces = [*_AWKWARD[:-2], *(tag for entry in FORMATS.values() for tag in entry.tags), *string.printable]
    pieces += ["\\n", '\\"', "\\u0041", "<", "</", ">", "=", "({", "})", "'''", '"""', "é", "🎈", "\n"]
    made = list(_AWKWARD)
    while len(made) < count:
        made.append("".join(random.choices(pieces, k=random.randrange(1, 12))))
    return made[:count]


def round_trip(
    tool_format: ToolFormat, commands: Sequence[str], through: Callable[[str], str] = lambda text: text
) -> RoundTrip:
    """Render, send ``through`` (tokens and back), read, render again: the same, or refused by the renderer."""
    result = RoundTrip()
    for command in commands:
        try:
            text = render_tool_call(command, tool_format)
        except ValueError:
            result.refused += 1
            continue
        try:
            arrived = through(text)
            found = parse_tool_call(arrived, tool_format).command
            again = render_tool_call(found, tool_format)
        except ValueError as error:
            result.wrong.append(f"{command[:60]!r}: {error}")
            continue
        if (arrived, found, again) == (text, command, text):
            result.carried += 1
        else:
            result.wrong.append(f"{command[:60]!r} became {found[:60]!r}")
    return result


def damaged_turns(tool_format: ToolFormat, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """(command, turn): turns whose frame, all but the command itself, was damaged; and every turn cut off short."""
    random = Random(seed)
    commands = ["rm -r build", "echo \"$x\" 'y'", "cat <<E\na\nE", "true"]
    for command in commands:
        text = render_tool_call(command, tool_format)
        yield from ((command, text[:cut]) for cut in range(len(text)))
        yield command, f"{text}\n{text}"
        yield command, f"{text}\n{text[: len(text) // 2]}"
    while count > 0:
        command = random.choice(commands)
        text = render_tool_call(command, tool_format)
        opens, closes = _frame(tool_format)
        at = random.choice([*range(opens), *range(len(text) - closes, len(text))])
        if random.random() < 0.5:
            size = random.randrange(1, 12)
            end = min(at + size, opens) if at < opens else at + size
            yield command, text[:at] + text[end:]
        else:
            yield command, text[:at] + random.choice("<>/=\"'{}[]():,\\ \nabc01") + text[at + 1 :]
        count -= 1


def misread(tool_format: ToolFormat, turns: Iterator[tuple[str, str]]) -> tuple[int, list[str]]:
    """How many damaged turns were refused, and those that were read as another command; there must be none."""
    refused, wrong = 0, []
    for command, text in turns:
        try:
            found = parse_tool_call(text, tool_format).command
        except ToolCallError:
            refused += 1
        else:
            if found != command:
                wrong.append(f"{text[:120]!r} was read as {found[:60]!r}")
    return refused, wrong


def _frame(tool_format: ToolFormat) -> tuple[int, int]:
    """How many characters stand before and after the command."""
    text = render_tool_call("A", tool_format)
    at = text.index("A")
    return at, len(text) - at - 1
