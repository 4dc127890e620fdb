import copy
import pickle
from pathlib import Path

from leonardo.errors import FailureClass, FailureFamily, InfrastructureError
from leonardo.taxonomy import failures_page

PAGE = Path(__file__).parents[1] / "docs" / "failures.md"


def test_the_page_is_the_taxonomy() -> None:
    assert PAGE.read_text() == failures_page(), "write it again: leonardo failures > docs/failures.md"
    assert all(f"| `{entry}` |" in PAGE.read_text() for entry in FailureClass)


def test_a_class_is_its_value_and_says_whose_fault_it_is() -> None:
    assert FailureClass("mirror") is FailureClass.MIRROR
    assert FailureClass.MIRROR == "mirror"
    assert f"{FailureClass.MIRROR}" == "mirror"
    assert FailureClass.PORT.family is FailureFamily.ENVIRONMENT
    assert pickle.loads(pickle.dumps(FailureClass.PORT)) is copy.deepcopy(FailureClass.PORT) is FailureClass.PORT
    assert {entry.family for entry in FailureClass} == set(FailureFamily)


def test_an_infrastructure_failure_is_of_the_runtime_unless_said_otherwise() -> None:
    assert InfrastructureError("x").failure is FailureClass.RUNTIME
