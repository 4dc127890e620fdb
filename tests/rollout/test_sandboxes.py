"""Rollouts on pooled sandboxes: the same outcome, the next wave started ahead, what happened written down."""

import json
from collections.abc import Callable
from pathlib import Path

from leonardo.assets.store import AssetStore
from leonardo.rollout.episode import EpisodeSettings
from leonardo.rollout.episodes import run_rollouts
from leonardo.rollout.sandboxes import TaskSandboxes
from leonardo.sandbox.driver import Driver
from leonardo.sandbox.pool import PoolSettings, SandboxPool
from leonardo.site import Site
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files
from tests.rollout.scripted import ScriptedPolicy, calls

SETTINGS = EpisodeSettings(steps=3, context_tokens=4000, live=2, threads=2, command_timeout=5, verifier_timeout=5)


def test_waves_start_the_next_ones_sandboxes(
    site: Site, driver: Driver, make_task: Callable[..., Task], tmp_path: Path
) -> None:
    # a bound so low that a layer stays only as long as somebody uses it
    store = AssetStore(site.cache / "assets", driver, site, timeout=20, most_unpacked=1)
    answers = verifier_files('#!/bin/bash\n[ "$(cat /workspace/answer)" = "$(cat /given)" ]\n')
    tasks = [make_task(f"echo {number} > /given", f"t{number}", tests=answers) for number in range(5)]
    assert all(entry.failure is None for entry in store.build(tasks))
    policy = ScriptedPolicy(calls("cat /given > answer; sleep 0.3"))
    with SandboxPool(PoolSettings(concurrency=2, ahead=2), driver=driver) as pool:
        sandboxes = TaskSandboxes(store, pool)
        rollouts = list(run_rollouts(policy, [*tasks, *tasks], range(10), sandboxes, SETTINGS))
        assert [rollout.reward for rollout in rollouts] == [1.0] * 10
        state = pool.metrics.to_json()
    assert state["events"]["prefetch-hit"] >= 2
    assert state["now"]["in-use"] == 0
    assert state["durations"]["reset"]["count"] == state["durations"]["destroy"]["count"] == 10
    sandboxes.write_metrics(tmp_path / "sandboxes.json")
    written = json.loads((tmp_path / "sandboxes.json").read_text())
    assert written["events"] == state["events"]
    assert written["layers"]["evictions"] > 0
    assert 'operation="reset"' in (tmp_path / "sandboxes.prom").read_text()
