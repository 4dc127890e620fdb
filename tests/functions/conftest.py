"""The package's worker, where it is installed."""

from collections.abc import Iterator

import pytest

from leonardo.errors import InputError
from leonardo.functions.checkers import Checkers, package_folder


@pytest.fixture(scope="session")
def checkers() -> Iterator[Checkers]:
    try:
        package_folder()
    except InputError as error:
        pytest.skip(str(error))
    with Checkers() as opened:
        yield opened
