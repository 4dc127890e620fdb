"""Settings files: YAML that is read strictly. What is wrong is named by file, line and setting, in one line."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from yaml.constructor import SafeConstructor

from leonardo.errors import InputError

LAUNCH = Path(__file__).parent.parent / "launch"
"""Sites, stages and models, as data."""


class Settings(BaseModel):
    """A settings file, or a part of one: unknown names are refused, values do not change, numbers are finite."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    examples: ClassVar[str] = "launch"
    """Where a file of the kind can be looked up."""


AnySettings = TypeVar("AnySettings", bound=Settings)

_MOST_VALUES = 100_000
"""In a file of settings; the longest here has some hundreds."""

_INT, _FLOAT, _READER = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float", SafeConstructor()

_WORDS = {
    "extra_forbidden": "unknown setting",
    "tuple_type": "a list is wanted",
    "list_type": "a list is wanted",
    "dict_type": "keys are wanted",
    "model_type": "keys are wanted",
    "too_short": "it is empty",
    "string_too_short": "it is empty",
}
"""What pydantic's types of errors are to whoever wrote the file; of the others its own words serve."""


def find_settings(name: str | Path, folder: str) -> Path:
    """The file of ``name``: a path that ends in .yaml, or a name in ``launch/<folder>``. Raises InputError."""
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else LAUNCH / folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(entry.stem for entry in (LAUNCH / folder).glob("*.yaml"))) or "none"
        one = folder.removesuffix("ies") + "y" if folder.endswith("ies") else folder.removesuffix("s")
        raise InputError(f"No {one} {name}", f"Known {folder}: {known}; or give the path of a .yaml file")
    return path


def read_settings(path: Path, kind: type[AnySettings], defaults: dict[str, Any] | None = None) -> AnySettings:
    """Read a file as ``kind``; ``defaults`` are values that a validator has to see, too.

    Raises:
        InputError: it is not YAML, or a setting is unknown, missing, wrong or there twice; names file and line.
    """
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise InputError(f"{path} holds no settings", _see(kind.examples))
    try:
        return kind.model_validate((defaults or {}) | values)
    except ValidationError as error:
        errors = error.errors()
        # a name that is misspelled is missing, too; that it is unknown says more
        first = next((entry for entry in errors if entry["type"] == "extra_forbidden"), errors[0])
        message = _WORDS.get(first["type"], first["msg"].removeprefix("Value error, "))
        raise wrong_setting(path, first["loc"], message, kind.examples) from error


def require_named(path: Path, folder: str, name: str) -> None:
    """What a file calls itself is what others find it by, and what evidence is kept under.

    A file of ``launch/<folder>`` has its own name; one elsewhere may have any that is not of a file in there.

    Raises:
        InputError: names both.
    """
    require_plain_name(path, name)
    own = path.resolve().parent == (LAUNCH / folder).resolve()
    if name != path.stem and (own or (LAUNCH / folder / f"{name}.yaml").is_file()):
        what = f"which is launch/{folder}/{name}.yaml" if not own else f"and the file {path.stem}"
        raise InputError(f"{at(path, ('name',))}: name is {name}, {what}", f"Write name: {path.stem}")


def require_plain_name(path: Path, name: str) -> None:
    """It becomes a part of files' names. Raises InputError."""
    if not re.fullmatch(r"\w[\w.+-]{0,99}", name):
        raise InputError(f"{at(path, ('name',))}: name is {name!r}", "Letters, digits, and the signs _ . + -")


def read_yaml(path: Path) -> Any:
    """What a file holds. Raises InputError that names file and line."""
    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        _require_plain(path, root)
        # again, since a composed tree cannot be read without PyYAML's inner parts
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{path}{line} is not YAML ({error.problem})", "Mend it there") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror})", "Make it readable, or name another") from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"{path} is not YAML ({' '.join(str(error).split())[:200]})", "Mend it there") from error
    return values


def wrong_setting(path: Path, place: Sequence[str | int], message: str, examples: str = "launch") -> InputError:
    """The error for a setting of a file; ``examples`` is where such files are."""
    setting = ".".join(str(part) for part in place) or "the file"
    return InputError(f"{at(path, place)}: {setting}: {message}", _see(examples))


def _see(examples: str) -> str:
    return f"Examples are in {examples}"


def at(path: Path, place: Sequence[str | int]) -> str:
    """File and line of a setting, or of the innermost part of ``place`` that is in the file."""
    return f"{path}:{_line(path, place)}"


def _line(path: Path, place: Sequence[str | int]) -> int:
    node, line = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader), 1
    for part in place:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    node, line = value, key.start_mark.line + 1
                    break
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
    return line


def _require_plain(path: Path, root: yaml.Node | None) -> None:
    """No setting twice in one place: YAML would take the last without a word. And no more than what a person writes.

    A node that is named again (``*name``) is counted each time, since whoever goes over the values meets it each time.
    """
    left, open_nodes = _MOST_VALUES, [root]
    while open_nodes:
        node = open_nodes.pop()
        left -= 1
        if left < 0:
            raise InputError(f"{path} holds more than {_MOST_VALUES} values, repeated ones counted", "Write it shorter")
        if (
            isinstance(node, yaml.ScalarNode)
            and node.tag == _FLOAT
            and not math.isfinite(_READER.construct_yaml_float(node))
        ):
            raise InputError(f"{path}:{node.start_mark.line + 1}: {node.value} is no finite number", "Give one")
        if isinstance(node, yaml.ScalarNode) and node.tag in (_INT, _FLOAT) and ":" in node.value:
            raise InputError(
                f"{path}:{node.start_mark.line + 1}: {node.value} is a number in sixties to YAML",
                "Write a plain number in the setting's unit; or quotes around it, where it is none",
            )
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    raise InputError(f"{path}:{key.start_mark.line + 1}: {key.value} is there twice", "Remove one")
                seen.add(key.value if isinstance(key, yaml.ScalarNode) else "")
                open_nodes.append(value)
        elif isinstance(node, yaml.SequenceNode):
            open_nodes += node.value
