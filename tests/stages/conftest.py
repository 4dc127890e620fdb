"""What the tests of stages share: the engine's small policy and site."""

from pathlib import Path

import pytest

from leonardo.engine.desk.policy import save_policy
from leonardo.tasks.desk import generate
from tests.engine.conftest import desk_site, untrained

__all__ = ["desk_site"]


@pytest.fixture(scope="session")
def micro_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an untrained policy that a test can train in seconds."""
    policy = untrained(generate("train", 46, seed=0))
    return save_policy(tmp_path_factory.mktemp("micro") / "start", policy.model, policy.tokenizer)
