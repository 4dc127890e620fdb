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
from leonardo.evaluation import RunFacts, read_record
from leonardo.evaluation.verdict import percent
from leonardo.files import digest_of, flat
from leonardo.gates.signal import signal_figures
from leonardo.gates.steps import StepRecord, read_records
from leonardo.report.cardrecords import Training, WarmStart, licenses_of, read_left
from leonardo.report.cardresults import LUCK, Measured, entry_over_seeds, measured
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


PARSERS = {
    "Hermes2ProToolParser": "hermes",
    "Llama3JsonToolParser": "llama3_json",
    "Olmo3PythonicToolParser": "olmo3",
    "Qwen3XMLToolParser": "qwen3_xml",
}
"""vLLM's parsers, by the names that its ``--tool-call-parser`` takes."""


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
        title: for people.
        facts: of its run.
        weights: digest of the weights; ``base`` of those that training began with, "" where it is not known.
        architecture, type, parameters: of the model.
        tool_format: how it writes calls; ``parser`` of vLLM reads them, ``parser_name`` is vLLM's word for it, or "".
        model: its model file, None where the run names none; ``licenses`` of its base model, as far as they are known.
        entries: of the ledger, with the run's pins; ``below`` are those that they build on, nearest first;
            ``over_seeds`` is that of the study over its seeds, where it came from this run.
        measured: evaluations of these weights.
        settings: of the training, in words; empty where it was not trained.
        tasks, tasks_digest: how many it was trained on, and the digest of theirs.
        warm_start: the record of the supervised training before, where it is here.
        shows, limits: in sentences.
        injected: faults that were injected into its training on purpose.
    """

    title: str
    facts: RunFacts
    weights: str
    base: str
    architecture: str
    type: str
    parameters: int
    tool_format: str
    parser: str
    parser_name: str
    model: Model | None
    licenses: Sequence[str]
    entries: Sequence[Entered]
    below: Sequence[Entered]
    over_seeds: Entered | None
    measured: Sequence[Measured]
    settings: dict[str, Any] = field(default_factory=dict)
    tasks: int = 0
    tasks_digest: str = ""
    warm_start: WarmStart | None = None
    shows: Sequence[str] = ()
    limits: Sequence[str] = ()
    injected: Sequence[str] = ()

    @property
    def unmoved(self) -> bool:
        """Whether training left the weights as they were."""
        return self.weights == self.base

    @property
    def functions_right(self) -> float | None:
        """The share of right ones among the function calling's demonstrations; None where there were none."""
        functions = self.facts.configuration.get("functions")
        share = functions.get("right") if isinstance(functions, dict) else None
        return share if isinstance(share, float) else None

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
    over_seeds = entry_over_seeds(run, [each.entry for each in all_entries])
    found = measured(run, place, weights, base, over_seeds, is_trained=bool(steps))
    tool_format = loaded.tokenizer.init_kwargs.get("tool_call_format", "qwen3-xml")
    parser = _parser(tool_format)
    return Card(
        title=f"{' '.join([model.name if model else facts.stage, *place.parts[1:-1]])} ({facts.name})",
        facts=facts,
        weights=weights,
        base=base,
        architecture=type(loaded.model).__name__,
        type=loaded.model.config.model_type,
        parameters=sum(weight.numel() for weight in loaded.model.parameters()),
        tool_format=tool_format,
        parser=parser,
        parser_name=PARSERS.get(parser.rpartition(":")[2], ""),
        model=model,
        licenses=_licenses(model, facts.site),
        entries=_each_once(entries),
        below=_below(entries[-1].entry, all_entries),
        over_seeds=next((each for each in all_entries if each.entry is over_seeds), None),
        measured=found,
        settings=_settings(training, facts) if steps else {},
        tasks=len(training.tasks),
        tasks_digest=digest_of(training.task_digests),
        warm_start=read_left(Path(training.policy, "warm-start.json"), WarmStart) if training.policy else None,
        injected=sorted({fault for step in steps for fault in step.injected}),
        **_words(facts, steps, has_spread=any(each.over_seeds for each in found)),
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


def _settings(training: Training, facts: RunFacts) -> dict[str, Any]:
    """Of the training: the desk learner's in words, upstream's as its flags are called."""
    if learner := flat(training.learner):
        return {words: learner[name] for name, words in _LEARNER.items() if name in learner}
    flags = facts.configuration.get("upstream")
    return flat(flags) if isinstance(flags, dict) else {}


def _words(facts: RunFacts, steps: Sequence[StepRecord], *, has_spread: bool) -> dict[str, list[str]]:
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
    limits = facts.limits
    if not has_spread:  # a run knows of the seeds that are to come, and not whether they came
        luck = f"{LUCK}: one seed says nothing about it."
        limits = [luck if limit.startswith(LUCK) else limit for limit in limits]
    return {"shows": shows, "limits": [*limits, *left_open_by_steps(run), *left_open_by_machine(run)]}
