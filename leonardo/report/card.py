"""A checkpoint's model card, written from the run's records and the ledger, beside the weights.

Nothing in it is written by hand: what it is and was trained on come from ``run.json`` and the training's
``config.json``, what was measured from the evaluations of exactly these weights and of those that the training began
with, what it proves from the ledger's entries with the run's pins and those that they build on.
"""

from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import EvalResult, ModelCardData

from leonardo.engine.upstream.checkpoint import NAME, to_upstream
from leonardo.errors import InputError
from leonardo.files import write_atomic
from leonardo.report.cardfacts import FILE, Card, collect
from leonardo.report.jinja import render_text
from leonardo.report.values import FILTERS
from leonardo.rollout.prompts import BASH_TOOL

_WRITTEN = ("start", f"start-{NAME}")
"""The folders that :func:`to_upstream` writes, over what is there."""


def write_card(checkpoint: Path, ledger: Path, served: Path | None = None) -> list[Path]:
    """Write the card into the checkpoint's folder. Returns the cards' paths.

    Args:
        checkpoint: a Hugging Face folder inside a run's folder.
        ledger: with the run's entry.
        served: a folder in which a new one gets the checkpoint as vLLM serves it, in bfloat16, with a card of its own.

    Raises:
        InputError: no checkpoint; ``served`` lies in it, or would be written over it; no run around it; a ledger that
            was edited, or that says nothing of the run.
    """
    if served is not None:
        _require_apart(checkpoint, served)
    card = collect(checkpoint, ledger)
    header = f"---\n{_data(card).to_yaml()}\n---\n\n"
    own, other = (
        header + render_text("card.md.j2", FILTERS, card=card, is_served=is_served, tool=BASH_TOOL)
        for is_served in (False, True)
    )  # both before anything is written
    texts = {checkpoint: own} | ({to_upstream(checkpoint, served): other} if served is not None else {})
    for folder, text in texts.items():
        write_atomic(folder / FILE, text)
    return [folder / FILE for folder in texts]


def _require_apart(checkpoint: Path, served: Path) -> None:
    policy, place = checkpoint.resolve(), served.resolve()
    written_over = any(policy.is_relative_to(place / name) for name in _WRITTEN)
    if place.is_relative_to(policy) or written_over:
        raise InputError(
            f"what is served cannot be written to {served}: the checkpoint lies there", "Name another folder"
        )


def _data(card: Card) -> ModelCardData:
    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=f"leonardo-{measured.record.model}",
            dataset_name=f"{measured.what} of {card.facts.stage}",
            metric_type="pass_rate",
            metric_value=measured.record.pass_rate,
        )
        for measured in card.measured
        if measured.record.pass_rate is not None
    ]
    return ModelCardData(
        model_name=" ".join(card.title.split()),
        library_name="transformers",
        pipeline_tag="text-generation",
        license=_one_or_all(card.licenses),
        base_model=card.base_model if card.on_hub else None,
        tags=["tool-calling", "reinforcement-learning", "tmax-leonardo"],
        eval_results=results or None,
        ignore_metadata_errors=True,
    )


def _one_or_all(names: Sequence[str]) -> str | list[str] | None:
    """As a header has them."""
    return [*names] if len(names) > 1 else next(iter(names), None)
