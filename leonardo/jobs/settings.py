"""What a stage and a model say about the jobs that run them. Sizes in GiB, times in minutes."""

from typing import Any

from pydantic import Field

from leonardo.errors import InputError
from leonardo.settings import Settings


class SandboxNodes(Settings):
    """Nodes of another kind that a job gets for sandboxes alone: ``nodes`` whole ones of ``pool``."""

    pool: str = Field(min_length=1)
    nodes: int = Field(default=1, gt=0)


class JobSettings(Settings):
    """A stage's part: how long, and what the desk engine needs; upstream's trainer takes a model's :class:`Shape`.

    Attributes:
        minutes: wall time.
        pool: kind of node; the site's first if "".
        cores, memory: of the desk engine's one node.
        tmp: node-local space, a node: unpacked layers, sockets, caches.
        restarts: how often it may be queued again, after preemptions and time limits.
        grace: seconds before its limit at which a job is told to save, where that is more than the site's.
        sandboxes: nodes for sandboxes alone, where upstream's trainer is the job; None to have them beside it.
    """

    minutes: int = Field(default=60, gt=0)
    pool: str = ""
    cores: int = Field(default=4, gt=0)
    memory: float = Field(default=16.0, gt=0)
    tmp: float = Field(default=8.0, gt=0)
    restarts: int = Field(default=3, ge=0)
    grace: int = Field(default=0, ge=0)
    sandboxes: SandboxNodes | None = None


class Shape(Settings):
    """How a model is laid out over GPUs of one kind.

    Attributes:
        nodes: whole nodes.
        learners: GPUs of the learner, node by node (upstream's ``num_learners_per_node``).
        engines, tensor_parallel: rollout engines, and GPUs of each.
        sequence_parallel: learner GPUs that share a sequence.
        zpg: learner GPUs that hold a second copy of the weights together; 1 for none.
        activations: estimate for a learner GPU.
        least_kv: room for keys and values that an engine has to have, a GPU.
        memory: of the host, a node, beside what sandboxes take.
        sandbox_memory: of the host, a sandbox: an environment's process and what it runs.
        flags: others of upstream's trainer that differ for this shape.
        reason: why it is so.
    """

    nodes: int = Field(gt=0)
    learners: tuple[int, ...] = Field(min_length=1)
    engines: int = Field(gt=0)
    tensor_parallel: int = Field(default=1, gt=0)
    sequence_parallel: int = Field(default=1, gt=0)
    zpg: int = Field(default=1, gt=0)
    activations: float = 8.0
    least_kv: float = 4.0
    memory: float = 64.0
    sandbox_memory: float = 1.0
    flags: dict[str, Any] = {}
    reason: str = Field(min_length=1)

    @property
    def gpus(self) -> int:
        """All of them."""
        return sum(self.learners) + self.engines * self.tensor_parallel

    def all_flags(self) -> dict[str, Any]:
        """The flags of upstream's trainer that the shape stands for."""
        return {
            "num_learners_per_node": list(self.learners),
            "vllm_num_engines": self.engines,
            "vllm_tensor_parallel_size": self.tensor_parallel,
            "sequence_parallel_size": self.sequence_parallel,
            "deepspeed_stage": 3,
            "deepspeed_zpg": self.zpg,
            **self.flags,
        }


def shape_for(shapes: dict[str, Shape], gpu: str, model: str) -> Shape:
    """The shape for a kind of GPU. Raises InputError that names those there are and says what to do."""
    if gpu not in shapes:
        known = f"It has: {', '.join(shapes)}. Name one with --shape, or add" if shapes else "It has none: add"
        raise InputError(
            f"model {model} has no shape for {gpu or 'a node without GPUs'}",
            f"{known} one to the model's file (docs/new-site.md)",
        )
    return shapes[gpu]
