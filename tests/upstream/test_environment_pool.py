"""The patch of the environment pool in upstream's own class: whoever waits for an environment gets it when it is freed.

Ray runs the pool's ``acquire`` and ``release`` in event loops of their own. The class is run in two such loops here,
with stand-ins for Ray; with the real Ray where upstream's environment is.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from leonardo.overlay.suites import TRAINER
from leonardo.overlay.tree import Tree
from tests.loops import loop_in_a_thread

MODULE = f"{TRAINER}/open_instruct/environments/pool.py"
PYTHON = Path(os.environ.get("LEONARDO_UPSTREAM_PYTHON") or Path(__file__).parents[2] / ".venv-upstream/bin/python")


class Environment:
    """An environment's actor, as far as the pool uses it: its answers are there at once."""

    def __init__(self) -> None:
        self.setup = types.SimpleNamespace(remote=lambda: None)
        self.reset = types.SimpleNamespace(remote=self._reset)

    async def _reset(self, **options: Any) -> tuple[None, list[dict[str, Any]]]:
        return None, []


def pool_class(source: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Upstream's class, taken from its module."""
    ray = mock.MagicMock()
    ray.remote = lambda *classes, **options: (
        types.SimpleNamespace(remote=Environment) if classes else lambda decorated: decorated
    )
    ray.method = lambda **options: lambda method: method
    ray.get = lambda values: values
    ray.exceptions.RayActorError = RuntimeError
    for name in ("open_instruct", "open_instruct.environments", "open_instruct.environments.backends"):
        monkeypatch.setitem(sys.modules, name, mock.MagicMock())
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setitem(sys.modules, "ray.exceptions", ray.exceptions)
    module = types.ModuleType("pool")
    exec(compile(source, MODULE, "exec"), module.__dict__)
    return module.EnvironmentPool


def test_waiter_is_woken(upstream: Tree, commit: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of one, two rollouts: the second begins when the first has ended."""
    pool = pool_class(upstream.git("show", f"{commit[1]}:{MODULE}"), monkeypatch)(1, Environment)
    with loop_in_a_thread() as acquiring, loop_in_a_thread() as releasing:

        def acquire() -> Any:
            return asyncio.run_coroutine_threadsafe(pool.acquire_reset({}), acquiring)

        environment, _ = acquire().result(timeout=5)
        second = acquire()
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0.3), releasing).result()  # the acquiring loop sleeps by now
        asyncio.run_coroutine_threadsafe(pool.release(environment), releasing).result(timeout=5)
        if commit[0] == "unpatched":
            with pytest.raises(TimeoutError):
                second.result(timeout=1)
            acquire().cancel()  # any further call wakes the loop, and with it the one that waited
        assert second.result(timeout=5)[0] is environment


SCRIPT = """
import ray
from open_instruct.environments.pool import EnvironmentPool

class Environment:
    def __init__(self, **options): ...
    async def setup(self): ...
    async def reset(self, **options): return None, []

ray.init(num_cpus=4, include_dashboard=False, _temp_dir={folder!r}, logging_level="ERROR")
pool = EnvironmentPool.remote(1, Environment)
environment, _ = ray.get(pool.acquire_reset.remote({{}}), timeout=60)
second = pool.acquire_reset.remote({{}})
ray.wait([second], timeout=1)
ray.get(pool.release.remote(environment), timeout=10)
print("woken" if ray.wait([second], timeout=5)[0] else "stalled")
"""


@pytest.mark.slow
def test_waiter_is_woken_in_ray(upstream: Tree, commit: tuple[str, str]) -> None:
    if not PYTHON.exists():
        pytest.skip("upstream's environment is not there (make upstream-env, or LEONARDO_UPSTREAM_PYTHON=...)")
    if os.geteuid() != 0:
        pytest.skip("Ray is run in a pid namespace, which takes root")
    upstream.git("checkout", "--quiet", "--detach", commit[1])
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:  # short: Ray puts sockets into it
        result = run_in_ray(SCRIPT.format(folder=folder), upstream.path / TRAINER)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split()[-1] == ("stalled" if commit[0] == "unpatched" else "woken")


PLACED = """
import ray
from ray.cluster_utils import Cluster
from open_instruct.environments.pool import EnvironmentPool

class Environment:
    def __init__(self, **options): ...
    async def setup(self): ...
    async def reset(self, **options): return None, []
    async def where(self): return ray.get_runtime_context().get_node_id()

head = dict(num_cpus=4, include_dashboard=False, temp_dir={folder!r}, object_store_memory=100_000_000)
cluster = Cluster(initialize_head=True, head_node_args=head)
others = [cluster.add_node(num_cpus=0, resources=dict(sandbox=10_000), object_store_memory=100_000_000) for _ in "ab"]
ray.init(address=cluster.address, logging_level="ERROR")
pool = EnvironmentPool.remote(4, Environment)
taken = [ray.get(pool.acquire_reset.remote({{}}), timeout=90)[0] for _ in range(4)]
places = [ray.get(actor.where.remote()) for actor in taken]
print("counts", sorted(places.count(node.node_id) for node in others))
"""


@pytest.mark.slow
def test_environments_start_on_nodes_for_sandboxes(
    upstream: Tree, commit: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes without CPUs beside the head: half of the environments on each, and none with the head."""
    if commit[0] == "unpatched" or not PYTHON.exists() or os.geteuid() != 0:
        pytest.skip("the patch in Ray takes the patched tree, upstream's environment and root")
    monkeypatch.setenv("LEONARDO_SANDBOX_NODES", "1")
    upstream.git("checkout", "--quiet", "--detach", commit[1])
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        result = run_in_ray(PLACED.format(folder=folder), upstream.path / TRAINER)
    assert result.returncode == 0, result.stderr
    assert "counts [2, 2]" in result.stdout


def run_in_ray(script: str, trainer: Path) -> "subprocess.CompletedProcess[str]":
    """Run a script in upstream's environment, so that nothing of Ray outlives it."""
    path = f"{trainer}{os.pathsep}{Path(__file__).parents[2]}"
    command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", str(PYTHON), "-c", script]
    environment = os.environ | {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
