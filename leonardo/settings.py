"""Settings files: YAML that is read strictly. What is wrong is named by file and setting, in one line."""

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from leonardo.errors import InputError

LAUNCH = Path(__file__).parent.parent / "launch"
"""Sites, stages and models, as data."""


class Settings(BaseModel):
    """A settings file, or a part of one: unknown names are refused, values do not change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


AnySettings = TypeVar("AnySettings", bound=Settings)


def find_settings(name: str | Path, folder: str) -> Path:
    """The file of ``name``: a path that ends in .yaml, or a name in ``launch/<folder>``. Raises InputError."""
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else LAUNCH / folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(entry.stem for entry in (LAUNCH / folder).glob("*.yaml"))) or "none"
        one = "study" if folder == "studies" else folder.removesuffix("s")
        raise InputError(f"No {one} {name}", f"Known {folder}: {known}; or give the path of a .yaml file")
    return path


def read_settings(path: Path, kind: type[AnySettings], defaults: dict[str, Any] | None = None) -> AnySettings:
    """Read a file as ``kind``; ``defaults`` are values that a validator has to see, too.

    Raises:
        InputError: it is not YAML, or a setting is unknown, missing or wrong.
    """
    example = "The other files in that folder are examples"
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not YAML ({' '.join(str(error).split())[:200]})", "Mend it there") from error
    if not isinstance(values, dict):
        raise InputError(f"{path} holds no settings", example)
    try:
        return kind.model_validate((defaults or {}) | values)
    except ValidationError as error:
        first = error.errors()[0]
        setting = ".".join(str(part) for part in first["loc"]) or "the file"
        message = "unknown setting" if first["type"] == "extra_forbidden" else first["msg"]
        raise InputError(f"{path}: {setting}: {message}", example) from error
