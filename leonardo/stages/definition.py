"""Stages and models as data: ``launch/stages/*.yaml`` and ``launch/models/*.yaml``, read strictly."""

from collections.abc import Callable, Collection
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import Field

from leonardo.engine.desk.config import LearnerConfig, WarmStartConfig
from leonardo.errors import InputError
from leonardo.gates.criteria import Criterion, require_figures
from leonardo.gates.direction import DirectionRule
from leonardo.gates.earlystop import StopRule
from leonardo.jobs.settings import JobSettings, Shape
from leonardo.rollout.episode import EpisodeSettings
from leonardo.rollout.families import REFERENCE, load_family
from leonardo.settings import Settings, at, find_settings, read_settings, require_named, wrong_setting
from leonardo.stages.corpus import Corpus
from leonardo.stages.figures import IN_A_JOB, IN_A_RUN

DESK_SIZES = (
    "steps", "groups", "group_size", "wanted_groups", "rounds", "micro_batch", "checkpoint_every", "episode",
)  # fmt: skip
UPSTREAM_SIZES = (
    "num_unique_prompts_rollout", "num_samples_per_prompt_rollout", "total_episodes", "async_steps", "active_sampling",
    "per_device_train_batch_size", "save_freq", "checkpoint_state_freq", "local_eval_every", "record_entropy",
)  # fmt: skip
"""Settings in which stages may differ and still vouch for each other: how much, how long, how often."""


class Bounds(Settings):
    """What a run's training may take besides its steps: minutes, and cost in the site's unit."""

    minutes: float | None = Field(default=None, gt=0)
    cost: float | None = Field(default=None, gt=0)


class Stage(Settings):
    """A stage file.

    Attributes:
        name: of the stage.
        after: the rung below, a pass of which opens this stage: ``gates`` or a stage; ``""`` for none.
        shows: what a pass of it is evidence for, in a sentence.
        signal: a stage whose criteria have to hold, too, for this one to be more than plumbing evidence.
        model: of ``launch/models``.
        corpus: sizes of the desk corpus: ``train``, ``held_out``, ``unprepared``.
        attempts: at each held-out task, in each evaluation; 0 where the stage evaluates nothing.
        episode, desk, warm_start: settings that differ from the defaults of the classes of the desk engine.
        upstream: flags of upstream's trainer.
        start_within, stall_after: seconds that the trainer may take for its first step, and for each later one.
        bounds, early_stop: what ends the training before its last step.
        resume: an interrupted run is gone on with, from its last checkpoint.
        direction: the rule by which the evaluation is judged, written down before the run.
        criteria: what a pass asks for.
        job: what it takes on a cluster.
        pins: what a launch holds the machine to: ``upstream``, a commit.
        rows: the rows to train on where it is not the desk corpus: a file or folder below the site's ``shared``.
    """

    examples: ClassVar[str] = "launch/stages"

    name: str
    after: str = ""
    shows: str
    signal: str = ""
    model: str = "desk"
    corpus: dict[str, int] = {}
    attempts: int = Field(default=0, ge=0)
    episode: dict[str, int | float] = {}
    desk: dict[str, Any] = {}
    warm_start: dict[str, Any] = {}
    upstream: dict[str, Any] = {}
    start_within: float = 600.0
    stall_after: float = 300.0
    bounds: Bounds = Bounds()
    early_stop: tuple[StopRule, ...] = ()
    resume: bool = False
    direction: DirectionRule | None = None
    criteria: tuple[Criterion, ...]
    job: JobSettings = JobSettings()
    pins: dict[str, str] = {}
    rows: str = ""

    def with_model(self, model: "Model") -> "Stage":
        """This stage with what ``model`` replaces in it."""
        own = {criterion.figure: criterion for criterion in model.criteria}
        return self.model_copy(
            update={
                "model": model.name,
                "episode": self.episode | model.episode,
                "warm_start": self.warm_start | model.warm_start,
                "criteria": tuple(own.get(criterion.figure, criterion) for criterion in self.criteria),
            }
        )

    def corpus_sizes(self) -> Corpus:
        """The corpus."""
        return _changed(Corpus(), self.corpus, "corpus")

    def episode_settings(self) -> EpisodeSettings:
        """The bounds of an episode."""
        return _changed(EpisodeSettings(), self.episode, "episode")

    def learner(self) -> LearnerConfig:
        """The desk engine's settings."""
        return _changed(LearnerConfig(episode=self.episode_settings()), self.desk, "desk")

    def warm_start_config(self) -> WarmStartConfig:
        """The base policy's."""
        return _changed(WarmStartConfig(episode=self.episode_settings()), self.warm_start, "warm_start")

    def upstream_updates(self) -> int:
        """How many updates upstream's trainer makes. Raises InputError where the stage does not say."""
        flags = self.upstream
        try:
            per_step = flags["num_unique_prompts_rollout"] * flags["num_samples_per_prompt_rollout"]
            return int(flags["total_episodes"] // per_step)
        except (KeyError, TypeError, ZeroDivisionError) as error:
            raise InputError(
                f"stage {self.name} does not say how many updates upstream makes",
                "Give total_episodes, num_unique_prompts_rollout and num_samples_per_prompt_rollout",
            ) from error

    def recipe(self, engine: str, model: "Model") -> dict[str, Any]:
        """How an engine learns, without the sizes of the stage: a pin that stages share."""
        if engine == "desk":
            settings, sizes = asdict(self.learner()), DESK_SIZES
        else:
            settings, sizes = {**model.upstream, **self.upstream}, UPSTREAM_SIZES
        return {name: value for name, value in settings.items() if name not in sizes}


class Model(Settings):
    """A model file.

    Attributes:
        name: of the model.
        start: ``desk`` for a policy made from nothing; else a pretrained model, as a folder or a name of the hub.
        family: of ``launch/families``, whose chat template and marks of a turn a pretrained model gets.
        tool_parser: upstream's name for a parser that it lists, with the checkpoint's own chat template; without one,
            the model gets the family's template and parser.
        episode: bounds of an episode in tokens of this model's tokenizer; they replace the stage's.
        warm_start: settings of its warm start; they replace the stage's.
        upstream: flags of upstream's trainer that belong to the model.
        criteria: in the place of the stage's for the same figures.
        revision: a commit of ``start`` on the hub; "" pins what the bundle brought.
        parameters: billions; 0 where memory is no question.
        shapes: how it is laid out over GPUs, by what sites call them.
    """

    examples: ClassVar[str] = "launch/models"

    name: str
    start: str
    family: str = REFERENCE
    tool_parser: str = ""
    episode: dict[str, int | float] = {}
    warm_start: dict[str, Any] = {}
    upstream: dict[str, Any] = {}
    criteria: tuple[Criterion, ...] = ()
    revision: str = ""
    parameters: float = Field(default=0.0, ge=0)
    shapes: dict[str, Shape] = {}

    @property
    def folder(self) -> str:
        """What the folder of ``start`` is called, in a bundle and among a site's models."""
        return Path(self.start).name

    def parser(self) -> tuple[str, dict[str, Any]]:
        """The name of its tool-call parser in upstream, and what upstream has to be told of it (nothing where listed).

        See :mod:`leonardo.hooks.parsers`.
        """
        if self.tool_parser:
            return self.tool_parser, {}
        family = load_family(self.family)
        return family.name, {family.name: family.upstream_entry("brief")}


def load_stage(name: str | Path) -> Stage:
    """Read a stage: a name in ``launch/stages`` or a path. Raises InputError that names file and setting."""
    path = find_settings(name, "stages")
    stage = read_settings(path, Stage)
    require_named(path, "stages", stage.name)
    _require_measured(path, stage, IN_A_JOB if stage.rows else IN_A_RUN)
    _try(path, stage.corpus_sizes, stage.episode_settings, stage.learner, stage.warm_start_config)
    return stage


def load_model(name: str | Path) -> Model:
    """Read a model: a name in ``launch/models`` or a path. Raises InputError that names file and setting."""
    path = find_settings(name, "models")
    model = read_settings(path, Model)
    require_named(path, "models", model.name)
    _require_measured(path, model, dict.fromkeys((*IN_A_RUN, *IN_A_JOB)))
    _try(
        path,
        lambda: _changed(EpisodeSettings(), model.episode, "episode"),
        lambda: _changed(WarmStartConfig(), model.warm_start, "warm_start"),
    )
    load_family(model.family)
    return model


def _require_measured(path: Path, read: Stage | Model, known: Collection[str]) -> None:
    """Each criterion is about a figure that the verdict will have. Raises InputError."""
    for number, criterion in enumerate(read.criteria):
        try:
            require_figures((criterion,), known)
        except ValueError as error:
            raise wrong_setting(path, ("criteria", number, "figure"), str(error), read.examples) from error


class _WrongSettingError(InputError):
    """Of a class of the desk engine; ``place`` is where a stage or model file has it."""

    def __init__(self, place: tuple[str, ...], what: str, hint: str) -> None:
        super().__init__(f"{'.'.join(place)}: {what}", hint)
        self.place = place


def _try(path: Path, *parts: Callable[[], object]) -> None:
    """Call each; what is wrong is named with the file."""
    try:
        for part in parts:
            part()
    except _WrongSettingError as error:
        raise InputError(f"{at(path, error.place)}: {error.what}", error.hint) from error
    except InputError as error:
        raise InputError(f"{path}: {error.what}", error.hint) from error


Parts = TypeVar("Parts", Corpus, EpisodeSettings, LearnerConfig, WarmStartConfig)


def _changed(default: Parts, values: dict[str, Any], where: str) -> Parts:
    known = {field.name: getattr(default, field.name) for field in fields(default)}
    changed = {}
    for name, value in values.items():
        if name not in known:
            raise _WrongSettingError((*where.split("."), name), "unknown setting", f"Known: {', '.join(sorted(known))}")
        kind = type(known[name])
        if is_dataclass(kind) and isinstance(value, dict):
            changed[name] = _changed(known[name], value, f"{where}.{name}")
        elif isinstance(value, kind) or (kind, type(value)) in ((float, int), (tuple, list)):
            changed[name] = kind(value)
        else:
            place = (*where.split("."), name)
            raise _WrongSettingError(place, f"{value!r} is no {kind.__name__}", "Examples are in launch/stages")
    return replace(default, **changed)
