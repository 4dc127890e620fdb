"""What a checkpoint's model card says, collected from the run's records and the ledger."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leonardo import evidence
from leonardo.engine.desk.policy import load_policy
from leonardo.engine.desk.update import digest_of_weights
from leonardo.errors import InputError
from leonardo.evaluation import Comparison, EvaluationRecord, RunFacts, compare, read_record
from leonardo.evaluation.compare import differences
from leonardo.evaluation.records import FamilyComparison
from leonardo.evaluation.verdict import MINIMUM_PAIRS, percent
from leonardo.files import digest_of, flat
from leonardo.gates.signal import signal_figures
from leonardo.gates.steps import StepRecord, read_records
from leonardo.report.cardrecords import Training, WarmStart, licenses_of, read_evaluation, read_left
from leonardo.report.claims import left_open_by_machine, left_open_by_steps, proven_by_steps
from leonardo.report.run import Run
from leonardo.rollout.families import family_names, load_family
from leonardo.site import load_site
from leonardo.stages.definition import Model, load_model
from leonardo.stages.start import pretrained

FILE = "README.md"

_LEARNER = {
    "steps": "updates",
    "groups": "prompts, a round of sampling",
    "group_size": "attempts at a prompt",
    "wanted_groups": "groups with passes and failures that an update waits for",
    "rounds": "rounds of sampling, at most",
    "passes": "passes over an update's rollouts",
    "minibatches": "optimizer steps a pass",
    "learning_rate": "learning rate (AdamW)",
    "divergence": "measure of the trust region",
    "threshold": "radius of the trust region",
    "gradient_limit": "limit of the gradient's norm",
    "episode.steps": "turns of an episode",
    "episode.turn_tokens": "tokens of a turn",
    "episode.context_tokens": "tokens of an episode",
}
"""The learner's settings that a card tells, in its words."""

_PINS = {
    "assets": "prepared states",
    "base_policy": "weights that the run began with",
    "config": "settings of the stage",
    "data": "tasks",
    "driver": "sandbox driver",
    "harness": "prompts, tool and bounds of an episode",
    "lock": "lock of bfcl-eval",
    "overlay": "code of tmax-leonardo",
    "patches": "patches of the recipe's repository",
    "recipe": "settings of the learner",
    "upstream": "commit of the recipe's repository",
}
"""Pins that a card names otherwise than the run does."""


@dataclass(frozen=True)
class Measured:
    """An evaluation of the weights; against those that training began with, task by task, where these were evaluated.

    Attributes:
        what: which tasks, as the run calls them.
    """

    what: str
    record: EvaluationRecord
    comparison: Comparison | None

    @property
    def kinds(self) -> list[str]:
        """Of its tasks."""
        return sorted({task.family for task in self.record.tasks})

    @property
    def by_kind(self) -> list[FamilyComparison]:
        """The comparison for each kind; none where kinds have too few tasks to tell."""
        found = self.comparison.families if self.comparison else []
        enough = len(found) > 1 and all(kind.difference.pairs >= MINIMUM_PAIRS for kind in found)
        return found if enough else []


@dataclass(frozen=True)
class Entered:
    """An entry of the ledger, the last of ``times`` that say the same, and its number."""

    number: int
    entry: evidence.Evidence
    times: int = 1


@dataclass(frozen=True)
class Card:
    """What a card says.

    Attributes:
        name: of the checkpoint: run and folder.
        title: for people.
        facts: of its run.
        weights: digest of the weights; ``base`` of those that training began with, "" where it is not known.
        architecture, type, parameters: of the model.
        tool_format: how it writes calls; ``parser`` of vLLM reads them.
        model: its model file, None where the run names none; ``licenses`` of its base model, as far as they are known.
        entries: of the ledger, with the run's pins; ``below`` are those that they build on, nearest first.
        measured: evaluations of these weights.
        settings: of the training, in words; empty where it was not trained.
        tasks, tasks_digest: how many it was trained on, and the digest of theirs.
        warm_start: the record of the supervised training before, where it is here.
        shows, limits: in sentences.
        injected: faults that were injected into its training on purpose.
    """

    name: str
    title: str
    facts: RunFacts
    weights: str
    base: str
    architecture: str
    type: str
    parameters: int
    tool_format: str
    parser: str
    model: Model | None
    licenses: Sequence[str]
    entries: Sequence[Entered]
    below: Sequence[Entered]
    measured: Sequence[Measured]
    settings: dict[str, Any] = field(default_factory=dict)
    tasks: int = 0
    tasks_digest: str = ""
    warm_start: WarmStart | None = None
    shows: Sequence[str] = ()
    limits: Sequence[str] = ()
    injected: Sequence[str] = ()

    @property
    def base_model(self) -> str:
        """What it was derived from; "" for a policy that was made from nothing."""
        return self.model.start if self.model and self.model.start != "desk" else ""

    @property
    def on_hub(self) -> bool:
        """Whether the base model is named as the hub names one, and not by a folder."""
        return re.fullmatch(r"\w[\w.-]*/[\w.-]+", self.base_model) is not None

    @property
    def pins(self) -> dict[str, Any]:
        """By name."""
        return {_PINS.get(name, name): value for name, value in flat(self.facts.pins).items()}

    @property
    def sampling(self) -> dict[str, Any]:
        """How it was sampled when it was measured, and the longest conversation; nothing where it was not measured."""
        pins = flat(self.measured[0].record.pins) if self.measured else {}
        return {name.rpartition(".")[2]: value for name, value in pins.items() if "." in name}


def collect(checkpoint: Path, ledger: Path) -> Card:
    """What there is to say. See :func:`leonardo.report.card.write_card`."""
    loaded = load_policy(checkpoint)
    run = _run_of(checkpoint)
    facts = read_record(run / "run.json", RunFacts)
    evidence.require_whole(ledger)
    all_entries = [Entered(number, entry) for number, entry in enumerate(evidence.read(ledger), 1)]
    entries = [each for each in all_entries if each.entry.pins == facts.pins]
    if not entries:
        raise InputError(f"{ledger} has no entry of the run {run.name}", "Name the ledger that the run was entered in")
    weights = digest_of_weights(loaded.model.state_dict())
    place = checkpoint.resolve().relative_to(run.resolve())
    steps = read_records(checkpoint.parent / "steps.jsonl")
    training = (steps and read_left(checkpoint.parent / "config.json", Training)) or Training()
    pinned = facts.pins.get("base_policy") if steps else None
    base = training.base or (pinned if isinstance(pinned, str) else "")
    model = _model(facts, place)
    tool_format = loaded.tokenizer.init_kwargs.get("tool_call_format", "qwen3-xml")
    return Card(
        name=f"{run.name}/{place}",
        title=f"{'/'.join([model.name if model else facts.stage, *place.parts[1:-1]])} ({facts.name})",
        facts=facts,
        weights=weights,
        base=base,
        architecture=type(loaded.model).__name__,
        type=loaded.model.config.model_type,
        parameters=sum(weight.numel() for weight in loaded.model.parameters()),
        tool_format=tool_format,
        parser=_parser(tool_format),
        model=model,
        licenses=_licenses(model, facts.site),
        entries=_each_once(entries),
        below=_below(entries[-1].entry, all_entries),
        measured=_measured(run, place, weights, base),
        settings=_settings(training, facts) if steps else {},
        tasks=len(training.tasks),
        tasks_digest=digest_of(training.task_digests),
        warm_start=read_left(Path(training.policy, "warm-start.json"), WarmStart) if training.policy else None,
        injected=sorted({fault for step in steps for fault in step.injected}),
        **_words(facts, steps),
    )


def _run_of(checkpoint: Path) -> Path:
    for folder in checkpoint.resolve().parents:
        if (folder / "run.json").is_file():
            return folder
    raise InputError(
        f"{checkpoint} lies in no run (run.json is missing above it)", "Name a checkpoint in its run's folder"
    )


def _model(facts: RunFacts, place: Path) -> Model | None:
    """The model file: that of a run with one, or the one whose folder the checkpoint lies in."""
    named = facts.configuration.get("models") or [facts.configuration.get("model")]
    for name in named if isinstance(named, list) else ():
        try:
            model = load_model(str(name))
        except InputError:  # it is not here any more
            continue
        if len(named) == 1 or model.name == place.parts[0]:
            return model
    return None


def _licenses(model: Model | None, site: str) -> tuple[str, ...]:
    """What the base model's own card says, where its folder has one."""
    try:
        folder = pretrained(model, load_site(site)) if model else None
    except InputError:
        return ()
    return licenses_of(folder / FILE) if folder else ()


def _parser(tool_format: str) -> str:
    families = map(load_family, family_names())
    return next((family.upstream.parser for family in families if family.format == tool_format), "")


def _each_once(entries: Sequence[Entered]) -> list[Entered]:
    """The last of those that say the same."""
    found: dict[tuple[str, str, str], Entered] = {}
    for each in entries:
        key = (each.entry.name, each.entry.verdict, each.entry.says)
        times = found.pop(key).times if key in found else 0
        found[key] = Entered(each.number, each.entry, times + 1)
    return list(found.values())


def _below(entry: evidence.Evidence, entries: Sequence[Entered]) -> list[Entered]:
    by_digest = {each.entry.digest: each for each in entries if each.entry.digest}
    found: list[Entered] = []
    while (below := by_digest.get(entry.builds_on)) is not None:
        found.append(below)
        entry = below.entry
    return found


def _measured(run: Path, place: Path, weights: str, base: str) -> list[Measured]:
    records = [read_evaluation(path) for path in sorted(run.glob("evaluation-*.json"))]
    prefix = "".join(f"{part}-" for part in place.parts[:-1])
    found = []
    for record in records:
        if record.weights != weights:
            continue
        before = (other for other in records if base and other.weights == base and not any(differences(other, record)))
        other = next(before, None)
        what = record.model.removeprefix(prefix)
        comparison = compare(other, record) if other is not None and base != weights else None
        found.append(Measured("held-out tasks" if what in ("base", "trained") else what, record, comparison))
    return found


def _settings(training: Training, facts: RunFacts) -> dict[str, Any]:
    """Of the training: the desk learner's in words, upstream's as its flags are called."""
    if learner := flat(training.learner):
        return {words: learner[name] for name, words in _LEARNER.items() if name in learner}
    flags = facts.configuration.get("upstream")
    return flat(flags) if isinstance(flags, dict) else {}


def _words(facts: RunFacts, steps: Sequence[StepRecord]) -> dict[str, list[str]]:
    """What the training shows, and what the run cannot show."""
    run = Run(steps=[step.model_dump(mode="json") for step in steps], facts=facts)
    figures, shows = signal_figures(steps), proven_by_steps(run)
    if figures["groups"]:
        shows.append(
            f"{figures['groups_with_signal']} of {figures['groups']} groups of attempts held both passes and failures "
            f"({percent(figures['signal_share'])}); others teach nothing and were left out."
        )
    if figures["reward_first"] is not None and figures["reward_last"] is not None:
        first, last = percent(figures["reward_first"]), percent(figures["reward_last"])
        shows.append(f"In the first update's sampling {first} of the attempts passed, in the last one's {last}.")
    return {"shows": shows, "limits": [*facts.limits, *left_open_by_steps(run), *left_open_by_machine(run)]}
