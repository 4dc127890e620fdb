"""The templates of pages: escaped, and strict about names."""

from collections.abc import Callable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


def render(template: str, filters: dict[str, Callable[..., Any]], **values: Any) -> str:
    """A page's HTML from a template of ``leonardo/report/templates``."""
    environment = Environment(
        loader=PackageLoader("leonardo.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= filters
    return environment.get_template(template).render(**values)
