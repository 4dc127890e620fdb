"""What a person asks of a stage."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from leonardo.stages.definition import Model, Stage, load_model, load_stage

Engine = Literal["desk", "upstream"]

LIMITS = {
    "desk": "Anything about the cluster engine: the desk engine is one process without Ray, vLLM or DeepSpeed.",
    "upstream": "Anything about speed or memory of the reference models on the cluster: this policy is small.",
}
"""What a run with the engine does not show."""


@dataclass(frozen=True)
class UpstreamPlace:
    """Where upstream's checkout and its Python are."""

    tree: Path
    python: Path

    @property
    def environment(self) -> Path:
        """The folder of upstream's environment."""
        return self.python.parent.parent


@dataclass(frozen=True)
class Asked:
    """What a person asks of a stage.

    Attributes:
        name: of ``launch/stages``, or a file.
        engine, seed, site, driver: with what, and where.
        place: of upstream's trainer.
        policy: start from this desk policy, not from a warm start.
        model: of ``launch/models``, or a file, in the place of the stage's.
        force: the reason for running without the evidence below; ``""`` for not doing so.
        fresh: do not go on with an interrupted run.
    """

    name: str
    engine: Engine
    seed: int
    site: str
    driver: str
    place: UpstreamPlace
    policy: Path | None = None
    model: str = ""
    force: str = ""
    fresh: bool = False

    def stage_and_model(self) -> tuple[Stage, Model]:
        """The stage with what its model replaces in it, and the model."""
        stage = load_stage(self.name)
        model = load_model(self.model or stage.model)
        return stage.with_model(model), model
