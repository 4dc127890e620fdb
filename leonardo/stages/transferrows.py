"""The function-calling rows of the transfer study: generated ones, or the package's own that are short enough."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import AutoTokenizer

from leonardo.engine.desk.dialogue import Dialogue, dress
from leonardo.errors import InputError
from leonardo.functions.answered import AnsweredTask
from leonardo.functions.checkers import Checkers
from leonardo.functions.desk import generate
from leonardo.functions.published import published_rows
from leonardo.functions.tasks import FunctionTask
from leonardo.rollout.families import load_family
from leonardo.rollout.formats import Call
from leonardo.site import Site
from leonardo.stages.definition import load_model
from leonardo.stages.start import pretrained
from leonardo.stages.transferfile import Transfer


@dataclass(frozen=True)
class FunctionRows:
    """What is demonstrated, trained on, and evaluated.

    Attributes:
        demonstrated: rows of which the warm start sees demonstrations; those that are trained on come first.
        train: rows that are trained on.
        held_out: rows that are evaluated on.
        counts: of the package's rows, how many each filter leaves: split -> category.
    """

    demonstrated: list[AnsweredTask]
    train: list[FunctionTask]
    held_out: list[FunctionTask]
    counts: dict[str, Any] = field(default_factory=dict)


def function_rows(stage: Transfer, seed: int, site: Site, checkers: Checkers) -> FunctionRows:
    """The rows of a study. Raises InputError where a category has none that are short enough."""
    sizes = stage.functions
    if sizes.source == "desk":
        train = generate("train", max(sizes.train, sizes.demonstrations), seed)
        shown = train[: sizes.demonstrations]
        held_out = generate("held-out", sizes.held_out, seed)
        return FunctionRows(shown, _tasks(train[: sizes.train]), _tasks(held_out))
    measures = [measure for name in stage.models if (measure := _measure(stage, name, site))]
    found = published_rows(
        checkers,
        sizes.categories,
        [load_family(load_model(name).family).tool_format for name in stage.models],
        lambda task, calls: all(measure.fits(task, calls) for measure in measures),
        seed,
    )
    for split, categories in found.left.items():
        if empty := [name for name, left in categories.items() if not left.fitting]:
            raise InputError(
                f"no {split} row of {empty[0]} fits {sizes.prompt_tokens} tokens", "Raise functions.prompt_tokens"
            )
    return FunctionRows(
        found.train, _tasks(found.train[: sizes.train]), _tasks(found.held_out[: sizes.held_out]), found.counts()
    )


@dataclass(frozen=True)
class _Measure:
    """What fits a model: a prompt of so many tokens, and an answer of one turn."""

    dialogue: Dialogue
    prompt_tokens: int
    turn_tokens: int

    def fits(self, task: FunctionTask, calls: Sequence[Call]) -> bool:
        if len(self.dialogue.prompt(task.messages, task.tools)) > self.prompt_tokens:
            return False
        return not calls or self._said(task, calls) <= self.turn_tokens

    def _said(self, task: FunctionTask, calls: Sequence[Call]) -> int:
        return len(self.dialogue.turn(self.dialogue.tool_format.render(calls, task.tools)))


def _measure(stage: Transfer, name: str, site: Site) -> _Measure | None:
    """None for a policy that is made from nothing: its tokenizer is made of the rows."""
    model = load_model(name)
    if (folder := pretrained(model, site)) is None:
        return None
    tokenizer = dress(AutoTokenizer.from_pretrained(folder), load_family(model.family), stage.listing)
    turn = stage.with_model(model).episode_settings().turn_tokens
    return _Measure(Dialogue(tokenizer), stage.functions.prompt_tokens, turn)


def _tasks(rows: Sequence[AnsweredTask]) -> list[FunctionTask]:
    return [row.task for row in rows]
