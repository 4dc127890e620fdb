"""A policy small enough to train in a test, and desk tasks on the tests' own root file system."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from leonardo.assets.store import AssetStore
from leonardo.engine.desk.config import PolicyShape, WarmStartConfig
from leonardo.engine.desk.demonstrations import Demonstration, first_turns
from leonardo.engine.desk.dialogue import Dialogue
from leonardo.engine.desk.policy import LoadedPolicy, make_model, make_tokenizer, save_policy
from leonardo.engine.desk.warm_start import imitate
from leonardo.rollout.prompts import SUBMIT_COMMAND, messages_of
from leonardo.rollout.sandboxes import MakeBackend
from leonardo.rollout.tool_calls import render_tool_call
from leonardo.sandbox.driver import Driver
from leonardo.site import load_site
from leonardo.tasks.desk import DeskTask, generate
from leonardo.tasks.task import Task
from tests.engine import arms

MICRO = PolicyShape(hidden_size=32, intermediate_size=32, heads=1, linear_heads=1, linear_head_dim=16)


@pytest.fixture(autouse=True)
def one_thread():
    """The models are too small for more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def desk_tasks() -> list[DeskTask]:
    return generate("train", 46, seed=0)


@pytest.fixture
def micro(desk_tasks: list[DeskTask]) -> LoadedPolicy:
    """A tokenizer of the corpus and an untrained model."""
    return untrained(desk_tasks)


def untrained(desk_tasks: Sequence[DeskTask]) -> LoadedPolicy:
    texts = [demonstration.text for demonstration in first_turns(desk_tasks, WarmStartConfig())]
    tokenizer = make_tokenizer([*texts, SUBMIT_COMMAND, "(no output)"] * 2, vocabulary=700)
    return LoadedPolicy(make_model(MICRO, tokenizer, seed=1).eval(), tokenizer)


@pytest.fixture(scope="session")
def arms_policy(desk_tasks: list[DeskTask], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that solves the tasks of :mod:`tests.engine.arms` about half of the time."""
    policy = untrained(desk_tasks)
    shown = [
        Demonstration(messages_of(task), ((render_tool_call(command), ""),), right=True)
        for task in arms.tasks(4)
        for command in (arms.GOOD, arms.BAD)
    ]
    config = WarmStartConfig(shape=MICRO, steps=120, batch=8, right_only=0.0)
    imitate(policy.model, Dialogue(policy.tokenizer), shown, shown, config, seed=0)
    return save_policy(tmp_path_factory.mktemp("arms") / "start", policy.model, policy.tokenizer)


@pytest.fixture
def desk_site(tmp_path: Path, tiny_root_archive: Path) -> Path:
    """A site file whose ubuntu:22.04 is the tests' own root file system."""
    path = tmp_path / "desk-site.yaml"
    path.write_text(
        f"name: test\ncache: {tmp_path / 'desk-cache'}\nbases:\n  ubuntu:22.04:\n    registry: false\n    substitute:\n"
        f"      {{kind: archive, path: {tiny_root_archive}, environment: {{}}, reason: a test}}\n"
    )
    return path


@pytest.fixture
def prepare(desk_site: Path, driver: Driver) -> Callable[[Sequence[Task]], MakeBackend]:
    """Builds tasks and gives their sandboxes."""
    site = load_site(desk_site)
    store = AssetStore(site.cache / "assets", driver, site, timeout=20)

    def prepared(tasks: Sequence[Task]) -> MakeBackend:
        for entry in store.build(tasks):
            assert entry.failure is None, entry.reason
        return lambda task: driver.backend(store.prepared(task).stack)

    return prepared
