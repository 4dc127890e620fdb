"""Where sandboxes run: on the nodes of a job that are for them alone, where it has such nodes.

Those nodes offer Ray a resource of their own and no CPUs, so that nothing else is placed there.
"""

import os
from typing import Any

PLACEMENT_VARIABLE = "LEONARDO_SANDBOX_NODES"
"""Set to 1 where a job has nodes for sandboxes alone."""

SANDBOX_RESOURCE = "sandbox"
SANDBOXES_A_NODE = 10_000
"""What a node offers of the resource: no bound of its own. Memory is the bound, and ``leonardo launch check`` asks."""


def on_sandbox_nodes(actor_class: Any) -> Any:
    """``actor_class``, of environments, such that its actors start on nodes for sandboxes, the same number on each.

    Args:
        actor_class: as ``ray.remote`` gives it.

    Returns:
        Something with the same ``remote``; ``actor_class`` itself where the job has no such nodes.
    """
    if os.environ.get(PLACEMENT_VARIABLE) != "1":
        return actor_class
    return actor_class.options(num_cpus=0, resources={SANDBOX_RESOURCE: 1}, scheduling_strategy="SPREAD")
