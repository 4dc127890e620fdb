"""The package's worker, where it is installed."""

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from leonardo.errors import InputError
from leonardo.functions.checkers import Checkers, package_folder
from leonardo.functions.tasks import FunctionTask, read_tasks


@pytest.fixture(scope="session")
def checkers() -> Iterator[Checkers]:
    try:
        package_folder()
    except InputError as error:
        pytest.skip(str(error))
    with Checkers() as opened:
        yield opened


@pytest.fixture(scope="session")
def rows(checkers: Checkers) -> Callable[[str], list[FunctionTask]]:
    """The rows of a category, read once."""
    return cache(lambda category: read_tasks(checkers, [category]))
