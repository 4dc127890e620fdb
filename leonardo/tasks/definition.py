"""Apptainer definition files -> what has to be done to make a task's world.

spython parses the file's structure. Its recipes do not keep a section's text, though: indentation, blank lines and
first comments (a shebang among them) go, and words such as ``from:`` in a script are read as headers. So the parser is
given the header as it is and, for every line of a section, a stand-in that names the line; the text is then taken from
the source, byte for byte, by the lines that the parser put into each section.

Two of Apptainer's own rules matter for scripts with here-documents: every line whose first word begins with ``%``
begins a section, and a line that begins with ``Bootstrap:`` begins a new stage, wherever it stands.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from spython.logger import bot
from spython.main.parse.parsers.singularity import SingularityParser

from leonardo.errors import FailureClass, InputError

IGNORED = {
    "help": "text for people",
    "labels": "metadata; kept with the definition, without effect on a sandbox",
    "runscript": "what `apptainer run` starts; sandboxes run commands of their own",
    "test": "Apptainer's check at the end of a build; the verifier is the test that counts",
    "arguments": "defaults of template variables; a definition that uses one is refused below",
}
"""Sections that are read over, and why."""

UNSUPPORTED = {
    "files": "copies files of the machine that the definition was written on",
    "setup": "runs on the host, outside of the image",
    "pre": "runs on the host, before the build",
    "startscript": "starts a service with the instance, and sandboxes start none",
    **dict.fromkeys(
        ("appinstall", "appenv", "apprun", "appfiles", "applabels", "apphelp", "apptest", "appstart"),
        "belongs to an SCIF app",
    ),
}
"""Sections that ask for what is not honoured here, and what that is."""

_HEADER = re.compile(r"\s*([A-Za-z]+)\s*:\s*(.*?)\s*(?:#.*)?$")
_HEADER_KEYS = {"bootstrap", "from", "stage"}
_ASSIGNMENT = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)=(.*)")
_TEMPLATE = re.compile(r"\{\{\s*\w+\s*\}\}")


class UnsupportedDefinition(InputError):
    """A definition that asks for what is not honoured here."""

    failure = FailureClass.UNSUPPORTED


@dataclass(frozen=True)
class Definition:
    """What a definition file asks for.

    Attributes:
        bootstrap: where the base comes from; always ``docker``.
        image: the base image, as the file names it (``ubuntu:22.04``).
        post: the set-up script, byte for byte, ``""`` if there is none; begins with a shebang line where the section
            names an interpreter (``%post -c /bin/bash``).
        environment: variables of ``%environment``.
        labels: ``%labels``.
    """

    bootstrap: str
    image: str
    post: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


class _Structure(SingularityParser):
    """spython's parser, which says what it found where: the stages, and the sections in their order."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__(filename=None, load=False)
        self.lines = lines
        self.stages: list[str] = []
        self.images: list[str] = []
        self.sections: list[str] = []
        level, bot.level = bot.level, 0  # quiet: it warns about what we leave out ourselves
        try:
            self.parse()
        finally:
            bot.level = level

    def _check_bootstrap(self, line: str) -> None:
        self.stages.append(_value(line))

    def _load_from(self, line: str) -> None:
        self.images.append(_value(line))  # as written: a tag may have capitals

    def _get_section(self, line: str) -> tuple[str, str | None]:
        section, layer = super()._get_section(line)
        self.sections.append(section)
        return section, layer


def parse_definition(text: str) -> Definition:
    """Parse a definition file.

    Raises:
        UnsupportedDefinition: it asks for what is not honoured here; names the section or header.
        InputError: it is no definition; names the line.
    """
    source = re.findall(r"[^\n]*\n|[^\n]+", text)  # not splitlines: a form feed in a script ends no line
    lines = [line.rstrip("\r\n") for line in source]
    first = next((number for number, line in enumerate(lines) if _is_section(line)), len(lines))
    _check_header(lines[:first])
    names = {
        number: lines[number].split()[0][1:].lower()
        for number in range(first, len(lines))
        if _is_section(lines[number])
    }
    _check_sections(names, lines)
    stand_ins = lines[:first] + [
        line if number in names or re.match("bootstrap:", line, re.IGNORECASE) else f"line-{number}="
        for number, line in enumerate(lines[first:], first)
    ]
    structure = _Structure(stand_ins)
    if len(structure.stages) > 1:
        raise UnsupportedDefinition(
            "Definition: more than one stage",
            "Write one stage; Apptainer takes every line that begins with Bootstrap: as a new one",
        )
    if not structure.stages or not structure.images:
        missing = "Bootstrap" if not structure.stages else "From"
        raise InputError(
            f"Definition: no {missing}: line before the first section", "Begin with Bootstrap: docker, From: IMAGE"
        )
    if structure.stages[0].lower() != "docker":
        raise UnsupportedDefinition(
            f"Definition: Bootstrap: {structure.stages[0]}", "Only Bootstrap: docker is honoured"
        )
    recipe = structure.recipe[structure.active_layer]
    if structure.sections != list(names.values()):
        raise InputError(
            "Definition: its sections cannot be told apart", "Write each section's name on a line of its own"
        )
    post = "".join(source[number] for number in _numbers(recipe.install))
    if "post" in names.values() and not post.strip():
        raise InputError("Definition: %post without content", "Write the set-up below %post, or leave the section out")
    return Definition(
        bootstrap="docker",
        image=structure.images[0],
        post=_shebang(lines, names) + post,
        environment=_environment([(number, lines[number]) for number in _numbers(recipe.environ)]),
        labels=_labels([lines[number] for number in _numbers(recipe.labels)]),
    )


def _value(line: str) -> str:
    match = _HEADER.match(line)
    return match.group(2) if match else ""


def _is_section(line: str) -> bool:
    return line.lstrip().startswith("%")


def _numbers(stand_ins: list[str]) -> list[int]:
    return [int(match.group(1)) for entry in stand_ins if (match := re.fullmatch(r"line-(\d+)=", entry))]


def _check_header(lines: list[str]) -> None:
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _HEADER.match(line)
        if not match or not match.group(2):
            raise InputError(
                f"Definition line {number}: {line.strip()[:60]!r} is no header line", "Write 'Name: value' there"
            )
        if match.group(1).lower() not in _HEADER_KEYS:
            raise UnsupportedDefinition(
                f"Definition line {number}: header {match.group(1)}:", "Only Bootstrap: and From: are honoured"
            )


def _check_sections(names: Mapping[int, str], lines: list[str]) -> None:
    for number, name in names.items():
        where = f"Definition line {number + 1}"
        if name in UNSUPPORTED:
            raise UnsupportedDefinition(
                f"{where}: section %{name} {UNSUPPORTED[name]}", "Not honoured: put it into %post"
            )
        if name not in ("post", "environment") and name not in IGNORED:
            raise InputError(
                f"{where}: unknown section {lines[number].strip()[:40]!r}",
                "Apptainer takes every line that begins with % as a section: in a script, write it another way",
            )
    if match := next(
        (match for line in lines if (match := _TEMPLATE.search(line)) and "arguments" in names.values()), None
    ):
        raise UnsupportedDefinition(f"Definition: template variable {match.group(0)}", "Put its value there")


def _shebang(lines: list[str], names: Mapping[int, str]) -> str:
    """A shebang line for ``%post -c INTERPRETER ...``; the script is otherwise run by ``/bin/sh -e``."""
    for number, name in names.items():
        words = lines[number].split("#", 1)[0].split()[1:]
        if name != "post" or not words:
            continue
        if words[0] != "-c" or len(words) < 2:
            raise UnsupportedDefinition(
                f"Definition line {number + 1}: %post {' '.join(words)}", "Only %post -c INTERPRETER is honoured"
            )
        return f"#!{' '.join(words[1:])}\n"
    return ""


def _environment(entries: list[tuple[int, str]]) -> dict[str, str]:
    variables: dict[str, str] = {}
    for number, line in entries:
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _ASSIGNMENT.fullmatch(stripped)
        try:
            words = shlex.split(match.group(2), comments=True) if match else []
        except ValueError:
            words, match = [], None
        if not match or len(words) > 1 or re.search(r"[$`]", match.group(2)):
            raise UnsupportedDefinition(
                f"Definition line {number + 1}: %environment line {stripped[:60]!r}",
                "Only NAME=value and export NAME=value are honoured, without expansions",
            )
        variables[match.group(1)] = words[0] if words else ""
    return variables


def _labels(lines: list[str]) -> dict[str, str]:
    pairs = (line.strip().partition(" ") for line in lines if line.strip())
    return {name: value.strip() for name, _, value in pairs}
