"""A real vLLM server with the desk policy, evaluated through its endpoint, against the same policy in this process."""

import os
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from leonardo.assets.store import AssetStore
from leonardo.engine.desk.sampler import Sampler
from leonardo.engine.upstream.checkpoint import to_upstream
from leonardo.evaluation import evaluate
from leonardo.evaluation.chat import Endpoint
from leonardo.evaluation.harness import EVALUATION_SEED, evaluation_pins
from leonardo.rollout.episode import EpisodeSettings
from leonardo.rollout.episodes import run_rollouts
from leonardo.rollout.formats import QWEN3_XML
from leonardo.rollout.sandboxes import TaskSandboxes
from leonardo.sandbox.drivers import open_driver
from leonardo.sandbox.pool import PoolSettings, SandboxPool
from leonardo.site import load_site
from leonardo.stages.endpoint import EndpointRun, evaluate_endpoint
from leonardo.tasks.desk import generate

PYTHON = Path(os.environ.get("LEONARDO_UPSTREAM_PYTHON") or Path(__file__).parents[2] / ".venv-upstream/bin/python")
START_WITHIN = 240.0
TASKS, ATTEMPTS = 16, 4


@pytest.fixture
def policy() -> Path:
    """A warm-started desk policy of the cache."""
    found = sorted((load_site("desk").cache / "desk").glob("warm-start-*"))
    if not PYTHON.is_file():
        pytest.skip("upstream's environment is not there (make upstream-env, or LEONARDO_UPSTREAM_PYTHON=...)")
    if not found:
        pytest.skip("no desk policy is in the cache (make demo)")
    return max(found, key=lambda folder: folder.stat().st_mtime)


@pytest.fixture
def server(policy: Path, tmp_path: Path):
    """The address of a vLLM server with the policy."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", to_upstream(policy, tmp_path), "--port", port,
        "--host", "127.0.0.1", "--served-model-name", "desk", "--dtype", "bfloat16", "--enforce-eager",
        "--max-model-len", 512, "--max-num-seqs", 16, "--limit-mm-per-prompt", '{"image": 0, "video": 0}',
        "--enable-auto-tool-choice", "--tool-call-parser", "qwen3_xml", "--generation-config", "vllm",
    ]  # fmt: skip
    quiet = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1"}
    log = tmp_path / "vllm.log"
    with log.open("w") as stream:
        process = subprocess.Popen(
            [*map(str, command)], stdout=stream, stderr=stream, env=os.environ | quiet, start_new_session=True
        )
    address = f"http://127.0.0.1:{port}/v1"
    try:
        deadline = time.monotonic() + START_WITHIN
        while time.monotonic() < deadline:
            assert process.poll() is None, log.read_text()[-3000:]
            try:
                if httpx.get(f"{address}/models", trust_env=False).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(1)
        else:
            pytest.fail(f"no server within {START_WITHIN:.0f} s: {log.read_text()[-3000:]}")
        yield address
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.mark.slow
def test_the_desk_policy_does_as_well_behind_vllm_as_here(
    policy: Path, server: str, tmp_path: Path, record_property
) -> None:
    settings = EpisodeSettings(live=16, threads=4)
    tasks = [task.task for task in generate("held-out", TASKS, 1)]
    records = {}
    for calls in ("text", "native"):
        run = EndpointRun(
            Endpoint(server, "desk", calls=calls), settings, QWEN3_XML, tmp_path / f"evaluation-{calls}.json", calls,
            attempts=ATTEMPTS, concurrency=8,
        )  # fmt: skip
        records[calls] = evaluate_endpoint(
            run, tasks, site="desk", driver_name="auto", jobs=2, console=Console(quiet=True)
        )
    known = load_site("desk")
    with open_driver() as driver, SandboxPool(PoolSettings(16), driver=driver) as pool:
        sandboxes = TaskSandboxes(AssetStore(known.cache / "assets", driver, known), pool)
        sampler = Sampler.load(policy)
        records["here"] = evaluate(
            lambda tasks, seeds: run_rollouts(sampler, tasks, seeds, sandboxes, settings),
            tasks, attempts=ATTEMPTS, seed=EVALUATION_SEED, model="here",
            pins=evaluation_pins(settings, driver=driver.name, assets=""),
        )  # fmt: skip
    rates = {name: record.pass_rate for name, record in records.items()}
    record_property("rates", rates)
    assert all(record.infrastructure_failures == 0 for record in records.values())
    assert 0 < rates["here"] < 1, rates
    assert abs(rates["text"] - rates["here"]) < 0.2, rates
    assert abs(rates["native"] - rates["here"]) < 0.2, rates
