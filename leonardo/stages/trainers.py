"""Training with one of the two engines, behind one call: the same policy, tasks, sandboxes and step records."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from leonardo.engine.desk.learner import train as train_on_the_desk
from leonardo.engine.desk.policy import load_policy
from leonardo.engine.outcome import TrainingOutcome
from leonardo.engine.upstream.engine import UpstreamRun, require_runnable
from leonardo.engine.upstream.engine import train as train_upstream
from leonardo.errors import NotFiniteError
from leonardo.gates.steps import StepRecord
from leonardo.hooks.sandbox import SCHEME, SITE_VARIABLE
from leonardo.site import CACHE_VARIABLE, Site
from leonardo.stages.asked import Engine, UpstreamPlace
from leonardo.stages.definition import Model, Stage
from leonardo.stages.recipe import Recipe

Look = Callable[[StepRecord], bool]
"""Called with each step record once it is written; whether to stop after it."""


class Trainer:
    """A stage's training with an engine, checked before any long work.

    Args:
        site_name: as it was asked for, for upstream's processes to read it, too.

    Raises:
        InputError: upstream's trainer cannot run here.
    """

    def __init__(
        self, stage: Stage, model: Model, engine: Engine, site: Site, site_name: str, place: UpstreamPlace
    ) -> None:
        self.engine = engine
        self._stage, self._site_name = stage, site_name
        self._run = _upstream_run(stage, model, site, place)
        if engine == "upstream":
            require_runnable(self._run)

    @property
    def updates(self) -> int:
        """How many updates the stage asks for."""
        return self._stage.learner().steps if self.engine == "desk" else self._stage.upstream_updates()

    def train(self, base: Path, recipe: Recipe, look: Look, note: Callable[[str], None]) -> TrainingOutcome:
        """Improve the policy ``base`` on the recipe's train tasks; ``note`` gets what there is to say on the way.

        The desk engine goes on with a run that is in the recipe's folder; upstream's refuses one.
        """
        if self.engine == "desk":
            return self._on_the_desk(base, recipe, look, note)
        images = {task.id: f"{SCHEME}{recipe.store.prepared(task).digest}" for task in recipe.train_tasks}
        sandbox = {
            SITE_VARIABLE: self._site_name,
            CACHE_VARIABLE: str(recipe.site.cache),
            "LEONARDO_DRIVER": recipe.driver.name,
        }
        return train_upstream(self._run, base, recipe.train_tasks, images, recipe.folder, recipe.seed, sandbox, look)

    def _on_the_desk(self, base: Path, recipe: Recipe, look: Look, note: Callable[[str], None]) -> TrainingOutcome:
        started, policy, reason = time.monotonic(), None, ""
        with recipe.sandboxes("training", self._stage.episode_settings()) as make_backend:
            try:
                policy = train_on_the_desk(
                    self._stage.learner(), base, recipe.train_tasks, recipe.folder, recipe.seed, make_backend, look,
                    resume=True, say=note,
                )  # fmt: skip
            except NotFiniteError as error:  # a finding, which the ledger has to hold
                reason = str(error)
        return TrainingOutcome(policy, int(policy is None), reason, seconds=round(time.monotonic() - started, 1))


def checkpoint_figures(base: Path, trained: Path | None) -> dict[str, Any]:
    """Whether the trained policy loads and differs from the base, both rounded to the precision of training."""
    if trained is None:
        return {"checkpoint_loads": False, "checkpoint_differs": None}
    before, after = (load_policy(folder).model.state_dict() for folder in (base, trained))
    differs = any(
        name not in after or not torch.equal(weight.to(torch.bfloat16), after[name].to(torch.bfloat16))
        for name, weight in before.items()
    )
    return {"checkpoint_loads": True, "checkpoint_differs": differs}


def _shape_flags(stage: Stage, model: Model, site: Site) -> dict[str, Any]:
    """How the model lies on the GPUs of a cluster's nodes, where it says; on the desk the site says that."""
    if site.cluster is None:
        return {}
    pool = site.cluster.pool(stage.job.pool or next(iter(site.cluster.pools)))
    return model.shapes[pool.gpu].all_flags() if pool.gpu in model.shapes else {}


def _upstream_run(stage: Stage, model: Model, site: Site, place: UpstreamPlace) -> UpstreamRun:
    parser, parsers = model.parser()
    return UpstreamRun(
        flags={**site.upstream.flags, **model.upstream, **stage.upstream, **_shape_flags(stage, model, site)},
        environment=site.upstream.environment,
        ray=site.upstream.ray,
        parser=parser,
        parsers=parsers,
        episode=stage.episode_settings(),
        python=place.python.absolute(),
        tree=place.tree.absolute(),
        compiled=site.cache / "upstream",
        stall_after=stage.stall_after,
        start_within=stage.start_within,
    )
