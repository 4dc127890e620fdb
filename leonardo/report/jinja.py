"""The templates of pages: escaped, and strict about names."""

from collections.abc import Callable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, filters: dict[str, Callable[..., Any]], **values: Any) -> str:
    """A page's HTML from a template of ``leonardo/report/templates``."""
    return _render(template, filters, values, escape=True)


def render_text(template: str, filters: dict[str, Callable[..., Any]], **values: Any) -> str:
    """The same for a template that is no HTML."""
    return _render(template, filters, values, escape=False)


def _render(template: str, filters: dict[str, Callable[..., Any]], values: dict[str, Any], *, escape: bool) -> str:
    environment = Environment(
        loader=PackageLoader("leonardo.report"),
        autoescape=escape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(template).render(**values)
