"""What an instruction says of files: which it names, and which the agent is to make."""

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

# a folder that the instruction names gives the agent what is in it, unless it is where everything lies
_WIDE = re.compile(r"/?|/(?:home|root|app|workspace|tmp|opt|srv|var|etc|usr|data|mnt)|/home/[^/]+", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.;!?])\s+|\n")
_GIVEN = r"read|from|using|input|provid|locat|exist|based on|pars|given|contain|modif|fix|edit|updat|append|process"
_MAKING = re.compile(
    r"\b(?:writ|creat|sav|generat|produc|output|stor|export|dump)\w*\b"
    rf"(?:(?!{_GIVEN}|[`'\"]?/)[^`]|`[^`/]*`){{0,100}}?"
    r"[`'\"]?(/[\w.@+-]+(?:/[\w.@+-]+)+)",
    re.IGNORECASE,
)


def names(instruction: str, path: str) -> bool:
    """Whether the instruction names a file, or a folder above it that is not where everything lies."""
    place = PurePosixPath(path)
    if _has_path(instruction, path) or ("." in place.name[1:] and place.name in instruction):
        return True
    if place.name.startswith("."):
        return False
    return any(not _WIDE.fullmatch(str(folder)) and _has_path(instruction, str(folder)) for folder in place.parents)


def outputs(instruction: str) -> set[str]:
    """The paths of which the instruction says that the agent is to write, create, save ... them."""
    return set(_outputs(instruction))


def _outputs(instruction: str) -> Iterator[str]:
    for sentence in _SENTENCE.split(instruction):
        for match in _MAKING.finditer(sentence):
            yield match.group(1).rstrip(".")


def _has_path(instruction: str, path: str) -> bool:
    return re.search(rf"{re.escape(path)}(?![\w-])", instruction) is not None
