"""Patches 0010 and 0012 on a real Ray: upstream's environment in actors that are killed, hang or lose their sandbox."""

import io
import json
import os
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from leonardo.overlay.tree import Tree
from tests.upstream.conftest import PROJECT
from tests.upstream.extracted import ROOT
from tests.upstream.test_shutdown_ray import PYTHON

TORCH = "class Tensor: ...\nclass device: ...\n"
"""Upstream's data types name them; nothing here uses them, and the real torch takes seconds in every actor."""

FLAKY = """
import os, signal, time
from types import SimpleNamespace
from open_instruct.environments import swerl_vanillux_sandbox as upstream

class Backend:
    _image = ""
    def start(self): ...
    def close(self): ...
    def write_file(self, path, content): ...
    def put_archive(self, root, tar_bytes): ...
    def run_command(self, command, timeout=None):
        if "the-kill" in command:
            os.kill(os.getpid(), signal.SIGKILL)
        if "the-hang" in command:
            time.sleep(600)
        if "the-lost" in command:
            raise ConnectionResetError("the daemon is gone")
        text = upstream.SUBMIT_MARKER if "the-submit" in command else "EXISTS" if "EXISTS" in command else "1"
        return SimpleNamespace(stdout=text, stderr="", exit_code=0)

upstream.create_backend = lambda kind, **options: Backend()

class Environment(upstream.SWERLVanilluxSandboxEnv):
    pass
"""

TRAINER = """
import asyncio, json, sys, time
from collections import defaultdict
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
import ray
from open_instruct.data_types import EnvConfig, EnvConfigEntry, ToolCallStats
from open_instruct.environments.base import EnvCall, RolloutState
from open_instruct.environments.pool import EnvironmentPool
from flaky import Environment
from tests.upstream.extracted import define

root, source = Path(sys.argv[1]), Path(sys.argv[2]).read_text()
ray.init(num_cpus=4, include_dashboard=False, object_store_memory=80_000_000)
space = {"asyncio": asyncio, "time": time, "defaultdict": defaultdict, "SANDBOX_TIMING_LOGS": False, "EnvCall": EnvCall}
space |= {"EnvConfig": EnvConfig, "EnvConfigEntry": EnvConfigEntry, "ToolCallStats": ToolCallStats}
space |= {"RolloutState": RolloutState, "RESET_FAILURE_ZERO_REWARD": False}
space["process_tool_tokens"] = lambda *arguments, **options: ([9], [0.0], [0], 0)
define(source, ("process_request _acquire_and_reset_pools _should_zero_reward_reset_failure PoolSetup SamplingConfig "
    "_register_tool_dispatch _select_tool_call_format_error_message CompletionOutput RequestOutput split_request_id"
    ).split(), space)

async def healthy(port): ...
space["_check_health"] = healthy
pool = EnvironmentPool.remote(pool_size=1, actor_class=Environment, backend="flaky", image="x", task_data_dir=str(root))

async def rollout(command):
    async def generate(**options):
        turn = SimpleNamespace(token_ids=[4], text=command, finish_reason="stop",
            logprobs=SimpleNamespace(token_logprobs=[-1.0]))
        return SimpleNamespace(choices=[turn])
    call = SimpleNamespace(name="bash", args={"command": command})
    done = Queue()
    actor = SimpleNamespace(server_port=1, pools={"sandbox": pool}, per_turn_max_tokens=None, tool_call_timeout=3.0,
        model_name="m", mask_tool_use=True, active_tasks={}, completion_queue=done,
        tool_parser=SimpleNamespace(
            parse_tool_calls=lambda text: SimpleNamespace(tool_calls=[call], had_tool_call=True)),
        client=SimpleNamespace(completions=SimpleNamespace(create=generate)),
        llm_engine=SimpleNamespace(model_config=SimpleNamespace(max_model_len=100),
            tokenizer=SimpleNamespace(eos_token_id=1)))
    sampling = space["SamplingConfig"](max_tokens=50)
    entry = EnvConfigEntry(env_name="sandbox", is_text_env=False, kwargs={"task_id": "t1", "image": "x"})
    actor.request_metadata = {"train_0_1": {"prompt_token_ids": [1], "active_tools": None,
        "env_config": EnvConfig(max_steps=2, env_configs={"sandbox": entry}), "original_sampling_params": sampling}}
    await space["process_request"](actor, "train_0_1_0", sampling)
    return done.get_nowait()["request_output"].outputs[0].rollout_state

async def main():
    for command in ("the-submit", "the-kill", "the-submit", "the-hang", "the-submit", "the-lost", "the-submit"):
        state = await asyncio.wait_for(rollout(command), 60)
        print(json.dumps([command, state["rewards"], state["info"].get("leonardo", {})]), flush=True)

asyncio.run(main())
ray.shutdown()
"""


@pytest.mark.slow
@pytest.mark.parametrize("commit", ["patched"], indirect=True)  # without, the first killed environment ends the run
def test_environments_that_fail_are_left_out_and_replaced(
    upstream: Tree, commit: tuple[str, str], tmp_path: Path
) -> None:
    if not PYTHON.is_file():
        pytest.skip("upstream's environment is not there (make upstream-env)")
    with tarfile.open(fileobj=io.BytesIO(upstream.git_bytes("archive", commit[1], ROOT))) as archive:
        archive.extractall(tmp_path / "tree", filter="data")
    for name, text in {"torch.py": TORCH, "flaky.py": FLAKY, "trainer.py": TRAINER}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "data" / "t1" / "tests").mkdir(parents=True)
    (tmp_path / "data" / "t1" / "tests" / "test.sh").write_text("exit 0\n")
    package = tmp_path / "tree" / ROOT
    with tempfile.TemporaryDirectory(prefix="lf", dir="/tmp") as scratch:  # Ray's sockets: 107 characters at most
        done = subprocess.run(
            [str(PYTHON), str(tmp_path / "trainer.py"), str(tmp_path / "data"), str(package / "vllm_utils.py")],
            env={
                **os.environ,
                "PYTHONPATH": f"{tmp_path}:{package.parent}:{PROJECT}",
                "LEONARDO_RUN": str(tmp_path),
                "RAY_TMPDIR": scratch,
                "RAY_enable_worker_prestart": "0",
            },
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["the-')]
    assert len(lines) == 7
    for command, rewards, notes in lines:
        failure = notes.get("failure")
        if command == "the-submit":  # each after a failure, in a pool of one
            assert (rewards, failure) == ([1.0], None)
            assert len(notes["sandbox"]["reset"]) == len(notes["sandbox"]["verify"]) == 1
        else:
            assert (failure["class"], failure["place"]) == ("runtime", "time-out" if command == "the-hang" else "step")
