"""What a check says of a job that is right, and of ten mistakes: each in one line, before the queue."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from leonardo.cluster import Cluster, Pool
from leonardo.jobs import slurm
from leonardo.jobs.check import Trainer, check
from leonardo.jobs.findings import Finding
from leonardo.jobs.folder import write_folder
from leonardo.jobs.plan import JobPlan
from leonardo.jobs.render import render
from leonardo.jobs.settings import Shape
from leonardo.site import load_site
from tests.slurm.conftest import SITE, ended, queue, wait_for

COMMIT = "1" * 40


@dataclass
class Job:
    """A job as a check sees it; tests change a part."""

    plan: JobPlan
    cluster: Cluster
    trainer: Trainer

    @property
    def pool(self) -> Pool:
        """Its nodes."""
        return self.cluster.pools["nodes"]

    def findings(self) -> list[Finding]:
        """What the check says."""
        return check(self.plan, self.cluster, self.pool, render(self.plan), self.trainer)

    def asks(self, **changes: object) -> None:
        """Change what is asked of the scheduler."""
        self.plan = replace(self.plan, resources=replace(self.plan.resources, **changes))

    def has_nodes(self, **changes: object) -> None:
        """Change the nodes of the site."""
        pool = self.pool.model_copy(update=changes)
        self.cluster = self.cluster.model_copy(update={"pools": {"nodes": pool}})
        self.plan = replace(self.plan, scratch=pool.tmp)

    def has_shape(self, **changes: object) -> None:
        """Change the model's shape."""
        self.trainer = replace(self.trainer, shape=self.trainer.shape.model_copy(update=changes))


@pytest.fixture
def job(tmp_path: Path, count: Callable[..., JobPlan]) -> Job:
    """A job of upstream's trainer on both nodes with everything in its place."""
    shared = tmp_path / "shared"
    site = tmp_path / "site.yaml"
    site.write_text(SITE.format(cache=shared / "cache", shared=shared, bases="  {}"))
    model = shared / "models" / "small"
    model.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model-1.safetensors", "model-2.safetensors"):
        (model / name).write_text("{}")
    (model / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}})
    )
    (model / "pin.json").write_text(json.dumps({"revision": "abc"}))
    environment = tmp_path / "environment"
    for name in ("ray-2.53.0", "flash_attn-2.8.3"):
        (environment / "lib/python3.12/site-packages" / f"{name}.dist-info").mkdir(parents=True)
    (environment / "bin").mkdir()
    for path in (environment / "bin/python", environment / ".ready"):
        path.touch()
    lock = tmp_path / "lock.txt"
    lock.write_text("ray==2.53.0 \\\n    --hash=sha256:1\nflash-attn==2.8.3 \\\n    --hash=sha256:2\n")
    stack = tmp_path / "patches"
    stack.mkdir()
    (stack / "series").touch()
    (stack / "upstream.lock").write_text(f"commit {COMMIT}\n")
    (tmp_path / "tree").mkdir()
    shape = Shape(nodes=2, learners=(4,), engines=4, sequence_parallel=2, memory=4, reason="a test")
    plan = count(1, needs={str(environment / "bin/python"): "Make it"})
    plan = replace(plan, resources=replace(plan.resources, nodes=2, gpus=4, gres=("gpu:4",), cores=8, memory=14))
    trainer = Trainer(
        python=environment / "bin/python",
        tree=tmp_path / "tree",
        patches=stack,
        lock=lock,
        shape=shape,
        wheels=shared / "wheels",
        flags={"num_unique_prompts_rollout": 4, "num_samples_per_prompt_rollout": 8, "pool_size": 8},
        parameters=2.0,
        model=model,
        name="small",
        revision="abc",
        commit=COMMIT,
    )
    return Job(plan, load_site(site).cluster, trainer)


def test_nothing_is_wrong(job: Job) -> None:
    """No finding, and the scheduler would take it."""
    assert job.findings() == []


def wrong_account(job: Job) -> None:
    """An account that is somebody else's."""
    job.asks(account="others")


def missing_model_file(job: Job) -> None:
    """A shard of the weights that was not copied."""
    (job.trainer.model / "model-2.safetensors").unlink()


def long_socket_path(job: Job) -> None:
    """A node-local folder with a name of 120 characters."""
    job.has_nodes(tmp=Path("/tmp/" + "x" * 115))


def too_small_tmp(job: Job) -> None:
    """Less node-local space than the layers need."""
    job.asks(tmp=30.0)


def wrong_pin(job: Job) -> None:
    """The model's folder holds another revision."""
    job.trainer = replace(job.trainer, revision="def")


def wrong_upstream(job: Job) -> None:
    """The patch stack is for another commit of upstream."""
    job.trainer = replace(job.trainer, commit="2" * 40)


def gpus_do_not_divide(job: Job) -> None:
    """Four learners, sequences shared by three."""
    job.has_shape(sequence_parallel=3)


def too_many_gpus(job: Job) -> None:
    """More engines than GPUs."""
    job.has_shape(engines=5)


def missing_wheel(job: Job) -> None:
    """A package that is in the lock and not in the environment."""
    (job.trainer.python.parent.parent / "lib/python3.12/site-packages/flash_attn-2.8.3.dist-info").rmdir()


def missing_wheel_in_folder(job: Job) -> None:
    """The environment is not made, and of its wheels one was not copied."""
    (job.trainer.python.parent.parent / ".ready").unlink()
    job.trainer.wheels.mkdir()
    (job.trainer.wheels / "ray-2.53.0-cp312-cp312-manylinux2014_x86_64.whl").touch()


def quota_nearly_full(job: Job) -> None:
    """A file system with next to nothing left."""
    shared = job.cluster.roots.scratch / "small"
    shared.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(shared)], check=True)
    roots = job.cluster.roots.model_copy(update={"scratch": shared, "least_files": 0})
    job.cluster = job.cluster.model_copy(update={"roots": roots})


def stale_lock(job: Job) -> None:
    """A folder that was taken and never let go."""
    first = replace(job.plan, needs={}, resources=replace(job.plan.resources, nodes=1, cores=1, gres=(), memory=1))
    wait_for(queue(replace(first, needs={})), ended)


def two_runs_in_one_folder(job: Job) -> None:
    """A job in the queue has the folder."""
    script = write_folder(job.plan, render(job.plan))
    held = slurm.submit(script, hold=True)
    lock = json.loads((job.plan.folder / "lock.json").read_text())
    (job.plan.folder / "lock.json").write_text(json.dumps(lock | {"job": held}))


def unset_variable(job: Job) -> None:
    """A folder of the site stands on a variable that is not set."""
    job.cluster = job.cluster.model_copy(update={"roots": job.cluster.roots.model_copy(update={"scratch": Path("$W")})})


def unknown_quality(job: Job) -> None:
    """A QOS that the scheduler does not know."""
    job.asks(quality="fast")


def weights_do_not_fit(job: Job) -> None:
    """An engine's GPU is full of weights."""
    job.trainer = replace(job.trainer, parameters=29.0)
    job.has_shape(learners=(4,), activations=0.0)
    job.has_nodes(gpu_memory=60.0)


@pytest.mark.parametrize(
    ("mistake", "kind", "words"),
    [
        (wrong_account, "slurm.account", "account others is none of yours (project"),
        (missing_model_file, "offline.model", "small lacks model-2.safetensors"),
        (long_socket_path, "paths.socket", "130 bytes, and sockets allow 38"),
        (too_small_tmp, "nodes.tmp", "the job needs 30 GiB in /tmp/node, which has 3"),
        (wrong_pin, "pins.model", "is pinned to def"),
        (wrong_upstream, "pins.upstream", "the stage is pinned to upstream 222222222222"),
        (gpus_do_not_divide, "gpus.divide", "4 learner GPUs are no multiple of sequence_parallel 3"),
        (too_many_gpus, "gpus.count", "4 learner and 5 engine GPUs are 9, 2 nodes have 8"),
        (missing_wheel, "offline.wheels", "lacks flash_attn==2.8.3"),
        (missing_wheel_in_folder, "offline.wheels", "lacks the wheel of flash_attn==2.8.3"),
        (quota_nearly_full, "space.quota", "are left by the file system"),
        (stale_lock, "run.lock", "has a stale lock of job"),
        (two_runs_in_one_folder, "run.folder", "is the folder of job"),
        (unset_variable, "paths.variable", "scratch of the site is $W"),
        (unknown_quality, "slurm.refused", "Invalid qos specification"),
        (weights_do_not_fit, "gpus.memory", "an engine GPU holds 54 GiB of weights"),
    ],
)
def test_mistake(job: Job, mistake: Callable[[Job], None], kind: str, words: str) -> None:
    """One finding a mistake, in one line that names it."""
    mistake(job)
    found = job.findings()
    assert {finding.id for finding in found} == {kind}, found
    assert any(words in str(finding) for finding in found)
    assert not any("\n" in str(finding) for finding in found)
