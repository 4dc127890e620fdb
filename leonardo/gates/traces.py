"""What of the machine that builds must not be in a state: its paths, its name, the secrets in its environment."""

import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_SECRET = re.compile(r"token|key|secret|passw|credential", re.IGNORECASE)
_TOKENS = {
    "a GitHub token": re.compile(r"\bgh[pousr]_[A-Za-z0-9]{36}\b"),
    "a Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{30,}\b"),
    "a GitLab token": re.compile(r"\bglpat-[A-Za-z0-9_-]{20,}\b"),
    "an AWS key": re.compile(r"\bAKIA[0-9A-Z]{16}\b"),
    "an account in an address": re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/:@'\"]+:[^\s/@'\"]+@[\w.-]+", re.IGNORECASE),
}
_SHORTEST = 8


def of_this_machine(places: Sequence[Path], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What to look for -> what it is. ``places``: folders of the builder, such as the store's."""
    found = {str(place.resolve()): "a path of the builder" for place in places}
    found[str(Path(__file__).resolve().parents[2])] = "a path of the builder"
    home = str(Path.home())
    if home != "/root":  # every image has that one
        found[home] = "the builder's home"
    name = socket.gethostname()
    if len(name) >= _SHORTEST and "localhost" not in name:
        found[name] = "the builder's name"
    for variable, value in environment.items():
        if _SECRET.search(variable) and len(value) >= _SHORTEST and not value.startswith("/"):
            found[value] = f"the value of the builder's ${variable}"
        if match := re.search(r"://([^/\s@]+)@", value):
            found[match.group(1)] = f"an account in the builder's ${variable}"
    return {text: what for text, what in found.items() if len(text) >= _SHORTEST and text.isprintable()}


def tokens_in(text: str, known: str) -> Iterator[str]:
    """What looks like a secret in ``text`` and is not in ``known`` (the task's own words: worlds have secrets, too)."""
    for what, pattern in _TOKENS.items():
        for match in pattern.findall(text):
            if match not in known:
                yield f"{what}: {match[:8]}..."
