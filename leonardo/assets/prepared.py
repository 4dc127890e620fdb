"""A prepared state: what a sandbox starts from, named by its content."""

from collections.abc import Mapping
from dataclasses import dataclass

from leonardo.sandbox.driver import LayerStack


@dataclass(frozen=True)
class PreparedState:
    """Base, delta and environment of a task, unpacked on this node."""

    digest: str
    stack: LayerStack

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that every command sees."""
        return self.stack.environment

    @property
    def name(self) -> str:
        """``prepared://<digest>``."""
        return f"prepared://{self.digest}"
