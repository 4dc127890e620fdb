"""Layers unpacked ahead: what is used most first, within the budget, with few operations on the shared store."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from leonardo.assets.manifest import read_manifest
from leonardo.assets.sharedfiles import SharedFiles
from leonardo.assets.staging import Staged, stage
from leonardo.assets.store import AssetStore
from leonardo.jobs.unpacked import read_unpacked
from leonardo.sandbox.driver import Driver
from leonardo.site import Site
from leonardo.tasks.task import Task
from tests.processes import running

LARGE = "head -c 600000 /dev/urandom > /large"
"""Leaves a layer that does not fit in the catalogue."""


@pytest.fixture
def states(store: AssetStore, make_task: Callable[..., Task]) -> list[str]:
    """Two large layers and one small; only the small one's state is in two rows."""
    tasks = [make_task(f"{script}; echo {n}", f"t{n}") for n, script in enumerate((LARGE, "echo a > /small", LARGE))]
    store.build(tasks)
    entries = [store.entry(task) for task in tasks]
    return [entries[number].prepared for number in (0, 1, 2, 1)]


def staged_in(
    node: Path, store: AssetStore, driver: Driver, states: Sequence[str], most_bytes: int | None = None
) -> Staged:
    staged, shared = Staged(), SharedFiles(store.root)
    stage(shared, node, driver, states, most_bytes, staged)
    staged.operations, staged.read_bytes = shared.operations, shared.bytes
    return staged


def layers_in(node: Path, driver: Driver) -> set[str]:
    return {path.name for path in (node / driver.name).glob("[0-9a-f]*")}


def test_each_file_is_opened_once(store: AssetStore, driver: Driver, states: list[str], tmp_path: Path) -> None:
    staged = staged_in(tmp_path / "node", store, driver, states)
    assert (staged.states, staged.layers, staged.new, staged.reason, staged.skipped) == (3, 4, 4, "", [])
    assert staged.operations == 1 + 2 + 1 + 1 + 2  # manifest, list, one catalogue, the base, two large layers
    large = [path.stat().st_size for path in (store.root / "layers").iterdir()]
    read = sum(large) + sum((store.root / name).stat().st_size for name in ("manifest.json", "catalogue/main.db"))
    assert staged.read_bytes == read + next((store.root / "bases").glob("*.tar")).stat().st_size
    assert not list((tmp_path / "node").glob(".staging-*"))
    assert staged_in(tmp_path / "node", store, driver, states).operations == 1


def test_within_the_budget_what_is_used_most_is_first(
    store: AssetStore, driver: Driver, states: list[str], tmp_path: Path, site: Site
) -> None:
    """A layer that does not fit is not begun: nothing that was unpacked before it is put out, the base least of all."""
    whole = staged_in(tmp_path / "all", store, driver, states)
    budget = whole.bytes - 600_000
    staged = staged_in(tmp_path / "node", store, driver, states, budget)
    assert staged.new < whole.new and staged.reason.startswith("the rest does not fit")
    assert staged.bytes <= budget
    kept = next(e for e in read_manifest(store.root / "manifest.json").values() if e["prepared"] == states[1])
    assert {kept["set_up"]["delta"], kept["base"]} <= layers_in(tmp_path / "node", driver)
    nothing = staged_in(tmp_path / "none", store, driver, states, 1000)
    assert (nothing.new, layers_in(tmp_path / "none", driver)) == (0, set())


def test_a_live_sandbox_keeps_what_it_stands_on(
    store: AssetStore, driver: Driver, states: list[str], tmp_path: Path, site: Site, make_task: Callable[..., Task]
) -> None:
    """Two layers of 5 MB where there is room for 7 beside what lives: one is unpacked, and nothing has to go."""
    tasks = [make_task(f"yes {number} | head -c 5000000 > /many", f"m{number}") for number in range(2)]
    many = [entry.prepared for entry in store.build(tasks)]
    node = tmp_path / "node"
    other = AssetStore(store.root, driver, site.model_copy(update={"node_cache": node}))
    with other.named.using(states[0]) as state, closing(driver.backend(state.stack, timeout=20)) as sandbox:
        sandbox.start()
        before = sandbox.run_command("sha256sum /large").stdout
        held = layers_in(node, driver)
        staged = staged_in(node, store, driver, many, sum(other.cache.layers().values()) + 7_000_000)
        assert (staged.new, staged.reason[:8]) == (1, "the rest")
        assert held < layers_in(node, driver)
        assert sandbox.run_command("sha256sum /large").stdout == before


def test_damaged_layers_are_passed_over(store: AssetStore, driver: Driver, states: list[str], tmp_path: Path) -> None:
    damaged, missing = sorted((store.root / "layers").iterdir())
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    missing.unlink()
    staged = staged_in(tmp_path / "node", store, driver, states)
    assert (staged.new, len(staged.skipped), staged.reason) == (2, 2, "")
    assert damaged.name[:12] in " ".join(staged.skipped) and missing.name[:12] in " ".join(staged.skipped)
    assert not {damaged.name[:64], missing.name[:64]} & layers_in(tmp_path / "node", driver)


def test_told_to_end_it_ends_and_says_so(site: Site, tmp_path: Path) -> None:
    """While it waits for its rows; its exit code is 0, since a job may not fail of it."""
    rows = tmp_path / "rows.jsonl"
    os.mkfifo(rows)
    environment = os.environ | {
        "LEONARDO_SITE": str(tmp_path / "site.yaml"),
        "LEONARDO_NODE_CACHE": str(tmp_path / "node"),
    }
    command = [sys.executable, "-m", "leonardo.jobs.unpack", str(tmp_path), str(rows)]
    with running(command, env=environment, stdout=subprocess.PIPE) as process:
        writer = opened(rows)  # it reads now, and nothing comes
        while process.poll() is None:  # again: Python sees none that comes between its last look and the read
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        said = process.communicate()[0]
    os.close(writer)
    assert process.returncode == 0 and "it was told to end" in said
    (staged,) = read_unpacked(tmp_path).values()
    assert (staged["reason"], staged["layers"], staged["operations"]) == ("it was told to end", 0, 1)
    assert json.loads((tmp_path / "events.jsonl").read_text())["code"] is None


def opened(pipe: Path) -> int:
    """The pipe's other end, once somebody reads from it."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
