"""Whether a job fits on its nodes: GPUs, their memory, the hosts' memory, node-local space. Estimates, said as such."""

from collections.abc import Iterator, Mapping
from typing import Any

from leonardo.cluster import Pool
from leonardo.jobs.findings import Finding
from leonardo.jobs.plan import Resources
from leonardo.jobs.settings import Shape

_GB = 1e9 / (1 << 30)  # billions of bytes in GiB
_STATES = 16  # bytes a parameter: bfloat16 weights and gradients, float32 master and two moments
_DESK_ACTIVATIONS = 2.0  # GiB; beside float32 weights, gradients and two moments, which are 16 bytes, too
_UTILIZATION = 0.9
"""vLLM's own share of a GPU where no flag says another."""


def node_findings(asked: Resources, pool: Pool) -> Iterator[Finding]:
    """What is asked of a node and is not there."""
    for name, what, wanted, there in (
        ("cores", "cores", asked.cores, pool.cores),
        ("memory", "GiB of memory", asked.memory, pool.memory),
        ("gpus", "GPUs", asked.gpus, pool.gpus),
    ):
        if wanted > there:
            yield Finding(
                f"nodes.{name}",
                f"{wanted:g} {what} a node are asked for, a node of {pool.partition} has {there:g}",
                "Ask for less in the stage's job, or take another pool",
            )
    most = max(pool.tmp_size, pool.most_tmp if pool.tmp_gres else 0.0)
    if asked.tmp > most:
        yield Finding(
            "nodes.tmp",
            f"the job needs {asked.tmp:g} GiB in {pool.tmp}, which has {most:g} on {pool.partition}",
            "Lower job.tmp of the stage, or name a larger folder as tmp of the site",
        )
    elif pool.tmp_in_memory and asked.tmp >= asked.memory:
        yield Finding(
            "nodes.tmp",
            f"{pool.tmp} is in memory, and {asked.tmp:g} GiB of it leave nothing of {asked.memory:g}",
            "Lower job.tmp of the stage",
        )


def shape_findings(shape: Shape, pool: Pool, flags: Mapping[str, Any]) -> Iterator[Finding]:
    """Where numbers of GPUs and sizes of batches do not divide."""
    learners = sum(shape.learners)
    there = shape.nodes * pool.gpus
    if shape.gpus > there:
        yield Finding(
            "gpus.count",
            f"{learners} learner and {shape.engines * shape.tensor_parallel} engine GPUs are {shape.gpus}, "
            f"{shape.nodes} nodes have {there}",
            "Raise nodes of the model's shape, or lower engines",
        )
    if too_many := [count for count in shape.learners if count > pool.gpus]:
        yield Finding(
            "gpus.count", f"{too_many[0]} learners on a node of {pool.gpus} GPUs", "Spread learners over more nodes"
        )
    if learners % shape.sequence_parallel:
        yield Finding(
            "gpus.divide",
            f"{learners} learner GPUs are no multiple of sequence_parallel {shape.sequence_parallel}",
            "Change learners or sequence_parallel of the model's shape",
        )
    if shape.zpg > 1 and any(count % shape.zpg for count in shape.learners):
        yield Finding(
            "gpus.divide",
            f"zpg {shape.zpg} does not divide the learners of a node, {list(shape.learners)}",
            "Take the number of learners a node, or 1",
        )
    if shape.tensor_parallel > pool.gpus or pool.gpus % shape.tensor_parallel:
        yield Finding(
            "gpus.divide",
            f"tensor_parallel {shape.tensor_parallel} does not divide the {pool.gpus} GPUs of a node",
            "An engine has to lie on one node",
        )
    groups = learners // shape.sequence_parallel
    prompts, samples = flags.get("num_unique_prompts_rollout"), flags.get("num_samples_per_prompt_rollout")
    if isinstance(prompts, int) and isinstance(samples, int) and groups and (prompts * samples) % groups:
        yield Finding(
            "gpus.divide",
            f"{prompts} prompts x {samples} rollouts do not divide by {groups} learners that work side by side",
            "Change the stage's batch, or learners of the model's shape",
        )


def memory_findings(
    shape: Shape,
    pool: Pool,
    parameters: float,
    flags: Mapping[str, Any],
    asked: Resources,
    apart: tuple[Resources, Pool] | None = None,
) -> Iterator[Finding]:
    """Whether weights, optimizer and caches fit in the GPUs and processes in the hosts; ``parameters`` in billions.

    ``apart`` are nodes that sandboxes have for themselves.
    """
    if parameters and pool.gpu_memory:
        learner = learner_memory(shape, parameters)
        if learner > pool.gpu_memory:
            yield Finding(
                "gpus.memory",
                f"a learner GPU needs about {learner:.0f} GiB, {pool.gpu or 'it'} has {pool.gpu_memory:g}",
                "More learners in the model's shape, or zpg 1",
            )
        share = float(flags.get("vllm_gpu_memory_utilization", _UTILIZATION))
        weights = 2 * parameters * _GB / shape.tensor_parallel
        if weights + shape.least_kv > share * pool.gpu_memory:
            yield Finding(
                "gpus.memory",
                f"an engine GPU holds {weights:.0f} GiB of weights and leaves "
                f"{share * pool.gpu_memory - weights:.1f} of {share * pool.gpu_memory:.0f} for keys and values",
                "Raise tensor_parallel of the model's shape",
            )
    pool_size = int(flags.get("pool_size", 0))
    hosts = [("a node", shape.memory, 0 if apart else pool_size / shape.nodes, asked, pool)]
    if apart is not None:
        hosts.append(("a node for sandboxes", 0.0, pool_size / apart[0].nodes, *apart))
    for what, trainer, sandboxes, nodes, kind in hosts:
        tmp = nodes.tmp if kind.tmp_in_memory else 0.0
        host = trainer + sandboxes * shape.sandbox_memory + tmp
        if host > nodes.memory:
            in_memory = f", tmp in memory {tmp:g}" if tmp else ""
            yield Finding(
                "nodes.memory",
                f"{what} needs about {host:.0f} GiB (trainer {trainer:g}, {sandboxes:.0f} sandboxes "
                f"{sandboxes * shape.sandbox_memory:.0f}{in_memory}) and gets {nodes.memory:.0f}",
                f"Lower pool_size{' or job.tmp' if tmp else ''}, or take more nodes",
            )


def learner_memory(shape: Shape, parameters: float) -> float:
    """GiB of a learner GPU: its part of weights, gradients and optimizer, the second copy, activations."""
    states = _STATES * parameters * _GB / sum(shape.learners)
    copy = 2 * parameters * _GB / shape.zpg if shape.zpg > 1 else 0.0
    return states + copy + shape.activations


def desk_memory(parameters: float) -> float:
    """GiB of the desk engine's process for billions of ``parameters``: float32 weights, gradients and two moments."""
    return _STATES * parameters * _GB + _DESK_ACTIVATIONS
