"""A checkpoint's model card, written from the run's records and the ledger, beside the weights.

Nothing in it is written by hand: what it is and was trained on come from ``run.json``, what was measured from the
evaluations of exactly these weights, what it proves from the ledger's entries with the run's pins.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from leonardo import evidence
from leonardo.engine.desk.policy import load_policy
from leonardo.engine.desk.update import digest_of_weights
from leonardo.errors import InputError
from leonardo.evaluation import EvaluationRecord, RunFacts, read_record
from leonardo.evaluation.verdict import percent
from leonardo.files import write_atomic
from leonardo.gates.signal import signal_figures
from leonardo.gates.steps import read_records
from leonardo.report.jinja import render_text

FILE = "README.md"


@dataclass(frozen=True)
class Card:
    """What a card says.

    Attributes:
        name: of the checkpoint: run and folder.
        facts: of its run.
        weights: digest of the weights.
        architecture, parameters: of the model.
        tool_format: how it writes calls.
        entries: of the ledger, with the run's pins.
        evaluations: of these weights.
        training: figures of the step records; empty where it was not trained.
    """

    name: str
    facts: RunFacts
    weights: str
    architecture: str
    parameters: int
    tool_format: str
    entries: tuple[evidence.Evidence, ...]
    evaluations: tuple[EvaluationRecord, ...]
    training: dict[str, Any]


def write_card(checkpoint: Path, ledger: Path) -> Path:
    """Write the card into the checkpoint's folder. Returns its path.

    Args:
        checkpoint: a Hugging Face folder inside a run's folder.
        ledger: with the run's entry.

    Raises:
        InputError: no checkpoint; no run around it; a ledger that was edited, or that says nothing of the run.
    """
    card = collect(checkpoint, ledger)
    path = checkpoint / FILE
    write_atomic(
        path, f"---\n{_data(card).to_yaml()}\n---\n\n" + render_text("card.md.j2", {"percent": percent}, card=card)
    )
    return path


def collect(checkpoint: Path, ledger: Path) -> Card:
    """What there is to say. See :func:`write_card`."""
    loaded = load_policy(checkpoint)
    run = _run_of(checkpoint)
    facts = read_record(run / "run.json", RunFacts)
    evidence.require_whole(ledger)
    entries = tuple(entry for entry in evidence.read(ledger) if entry.pins == facts.pins)
    if not entries:
        raise InputError(f"{ledger} has no entry of the run {run.name}", "Name the ledger that the run was entered in")
    weights = digest_of_weights(loaded.model.state_dict())
    records = [read_record(path, EvaluationRecord) for path in sorted(run.glob("evaluation-*.json"))]
    steps = read_records(checkpoint.parent / "steps.jsonl")
    return Card(
        name=f"{run.name}/{checkpoint.resolve().relative_to(run.resolve())}",
        facts=facts,
        weights=weights,
        architecture=type(loaded.model).__name__,
        parameters=sum(weight.numel() for weight in loaded.model.parameters()),
        tool_format=loaded.tokenizer.init_kwargs.get("tool_call_format", "qwen3-xml"),
        entries=entries,
        evaluations=tuple(record for record in records if record.weights == weights),
        training=signal_figures(steps) if steps else {},
    )


def _run_of(checkpoint: Path) -> Path:
    for folder in checkpoint.resolve().parents:
        if (folder / "run.json").is_file():
            return folder
    raise InputError(
        f"{checkpoint} lies in no run (run.json is missing above it)", "Name a checkpoint in its run's folder"
    )


def _data(card: Card) -> ModelCardData:
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=f"leonardo-{record.model}",
            dataset_name=f"held-out tasks of {card.facts.stage}, {record.model}",
            metric_type="pass_rate",
            metric_value=record.pass_rate,
        )
        for record in card.evaluations
        if record.pass_rate is not None
    ]
    return ModelCardData(
        model_name=card.name,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["tool-calling", "reinforcement-learning", "tmax-leonardo"],
        eval_results=results or None,
        ignore_metadata_errors=True,
    )
