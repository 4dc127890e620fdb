"""The templates of pages and cards: escaped, and strict about names."""

import re
from collections.abc import Callable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def render(template: str, filters: dict[str, Callable[..., Any]], **values: Any) -> str:
    """A page's HTML from a template of ``leonardo/report/templates``."""
    return _render(template, filters, values, escape=True)


def render_text(template: str, filters: dict[str, Callable[..., Any]], **values: Any) -> str:
    """The same for a template that is Markdown: every value stays in its line and its cell (:func:`in_line`)."""
    return _render(template, filters, values, escape=False)


def in_line(value: Any) -> str:
    """A value within a line of Markdown, or a cell of a table; as it is where it is marked as safe.

    Without breaks of lines, marks of cells, HTML, and the marks of a heading at its begin. Done twice it is the same.
    """
    if isinstance(value, Markup):
        return value
    text = re.sub(r"\s+", " ", str(value)).replace("|", "&#124;").replace("<", "&lt;")
    return re.sub(r"^(\s*)#", r"\1&#35;", text)


def _render(template: str, filters: dict[str, Callable[..., Any]], values: dict[str, Any], *, escape: bool) -> str:
    environment = Environment(
        loader=PackageLoader("leonardo.report"),
        autoescape=escape,
        finalize=None if escape else in_line,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(template).render(**values)
