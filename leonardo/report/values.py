"""Values as people write them, for all pages."""

import json
from typing import Any

from markupsafe import Markup, escape

from leonardo.evaluation.verdict import interval_points, percent, points

_LONG = 32
"""Hexadecimal texts of this length are digests."""


def value_text(value: Any) -> str:
    """A setting or figure as a person writes it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 1_000_000 else str(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(value_text(part) for part in value) or "none"
    return str(value) if isinstance(value, str) else json.dumps(value)


def short_text(value: Any) -> str:
    """A value for a narrow place: digests keep their first 12 digits."""
    text = value_text(value)
    if len(text) >= _LONG and all(letter in "0123456789abcdef" for letter in text.removeprefix("sha256:")):
        return f"{text.removeprefix('sha256:')[:12]}…"
    return text if len(text) <= 48 else f"{text[:45]}…"


def breakable(name: str) -> Markup:
    """A dotted name that may be broken after dots and before underscores."""
    return escape(name).replace(".", Markup(".<wbr>")).replace("_", Markup("_<wbr>"))


FILTERS = {
    "breakable": breakable,
    "value": value_text,
    "short": short_text,
    "percent": percent,
    "points": points,
    "interval_points": interval_points,
}
"""Of every template."""
