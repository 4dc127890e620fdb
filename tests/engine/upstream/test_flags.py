import pytest

from leonardo.engine.upstream.flags import PACKAGE, TRAINER, command_line, known_flags
from leonardo.errors import InputError

SOURCES = {
    TRAINER: """
from open_instruct import settings
parser = ArgumentParserPlus((settings.Training, Sampling))
""",
    PACKAGE / "settings.py": """
from dataclasses import dataclass, field
from typing import ClassVar

@dataclass
class Base:
    seed: int = 1

@dataclass
class Training(Base):
    learning_rate: float = 1e-6
    kind: ClassVar[str] = "x"
    parsed: list = field(default_factory=list, init=False)
    not_a_field = 3
""",
    PACKAGE / "deep" / "sampling.py": """
import dataclasses

@dataclasses.dataclass
class Sampling:
    temperature: float = 1.0

class NoDataclass:
    nothing: int = 0
""",
}


@pytest.fixture
def tree(tmp_path):
    for path, text in SOURCES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_flags_are_the_fields_of_the_dataclasses_that_the_parser_gets(tree):
    assert known_flags(tree) == {"seed", "learning_rate", "temperature"}


def test_a_command_line():
    known = frozenset({"a", "b", "c", "d"})
    settings = {"a": 0.5, "b": ["x", 2], "c": [{"backend": "prepared"}], "d": None}
    assert command_line(settings, known) == ["--a", "0.5", "--b", "x", "2", "--c", '{"backend": "prepared"}']


def test_an_unknown_flag_is_refused_with_the_nearest_one(tree):
    with pytest.raises(InputError, match=r"no flag learnin_rate\. Did you mean learning_rate\?"):
        command_line({"learnin_rate": 1}, known_flags(tree))


def test_a_folder_without_the_trainer_is_named(tmp_path):
    with pytest.raises(InputError, match="holds no trainer"):
        known_flags(tmp_path)


def test_a_class_that_no_file_defines_is_named(tree):
    (tree / PACKAGE / "settings.py").write_text("")
    with pytest.raises(InputError, match="flags of Training"):
        known_flags(tree)
