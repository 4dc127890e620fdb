"""The warm start: a policy, new or pretrained, is trained to imitate demonstrations, good and bad alike."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import tokenizers
import torch
import transformers
from accelerate import Accelerator
from transformers import PreTrainedModel

import leonardo
from leonardo.engine.desk.batches import pad, response_logprobs
from leonardo.engine.desk.config import WarmStartConfig, settings_of
from leonardo.engine.desk.demonstrations import Demonstration, first_turns, whole_demonstrations
from leonardo.engine.desk.dialogue import Dialogue
from leonardo.engine.desk.muon import Muon
from leonardo.engine.desk.policy import (
    LoadedPolicy,
    fill_folder,
    load_pretrained,
    make_model,
    make_tokenizer,
    write_folder,
)
from leonardo.engine.desk.update import digest_of_weights
from leonardo.errors import InputError, LeonardoError
from leonardo.files import digest_of, write_json
from leonardo.rollout.families import REFERENCE, Family, Listing, load_family
from leonardo.rollout.sandboxes import MakeBackend
from leonardo.tasks.desk import DeskTask

Progress = Callable[[int, int, str], None]
"""Called with (steps done, steps in all, what to show)."""

_RECORD = "warm-start.json"
_BLOCK = 64  # the linear attention works in blocks of so many tokens: a batch fills whole ones


def make_warm_start(
    config: WarmStartConfig,
    prepared_tasks: Sequence[DeskTask],
    other_tasks: Sequence[DeskTask],
    make_backend: MakeBackend,
    folder: Path,
    seed: int,
    progress: Progress = lambda done, total, note: None,
    family: Family | None = None,
    pretrained: Path | None = None,
    more: Sequence[Demonstration] = (),
    listing: Listing = "brief",
) -> Path:
    """Train a policy and save it below ``folder``. Made once: the name is the digest of all that decides it.

    Args:
        config: of the training.
        prepared_tasks: tasks that can be run; their demonstrations are whole.
        other_tasks: tasks that need not be; only the first turn of their demonstrations is used.
        make_backend: gives a sandbox for a prepared task.
        folder: where warm starts and demonstrations are kept.
        seed: of the initial weights and the order of the data.
        family: of the policy; the reference's by default.
        pretrained: folder of a model of that family to start from; a policy of the config's shape is made where None.
        more: demonstrations of other environments, of one turn each; they are drawn like first turns.
        listing: how the policy's chat template shows tools.

    Returns:
        A Hugging Face folder.
    """
    if not prepared_tasks or not other_tasks:
        raise InputError("a warm start needs prepared tasks and other tasks", "Give at least one of each")
    versions = [leonardo.__version__, torch.__version__, transformers.__version__, tokenizers.__version__]
    tasks = [[task.task.digest for task in part] for part in (prepared_tasks, other_tasks)]
    pins = {"versions": versions, "config": settings_of(config), "tasks": digest_of(tasks), "seed": seed}
    family = family or load_family(REFERENCE)
    if family.name != REFERENCE:  # the reference family's warm starts are older than families
        pins |= {"family": family.digest}
    start = load_pretrained(pretrained, family, listing) if pretrained else None
    if start is not None:
        pins |= {"pretrained": digest_of_weights(start.model.state_dict())}
    if listing != "brief":
        pins |= {"listing": listing}
    if more:
        pins |= {"more": digest_of([[entry.text, entry.right, list(entry.tools)] for entry in more])}
    target = folder / f"warm-start-{digest_of(pins)[:16]}"
    if (target / _RECORD).is_file() and (target / "model.safetensors").is_file():
        return target

    whole = whole_demonstrations(prepared_tasks, config, make_backend, folder, family.tool_format)
    first = [*first_turns(other_tasks, config, family.tool_format), *more]
    policy = start or _from_nothing(config, (*whole, *first), seed, family, listing)
    losses = imitate(policy.model, Dialogue(policy.tokenizer), whole, first, config, seed, progress)

    def fill(place: Path) -> None:
        fill_folder(place, policy.model, policy.tokenizer)
        write_json(place / _RECORD, {**pins, "demonstrations": [len(whole), len(first)], "losses": losses})

    return write_folder(target, fill)


def _from_nothing(
    config: WarmStartConfig, demonstrations: Sequence[Demonstration], seed: int, family: Family, listing: Listing
) -> LoadedPolicy:
    texts = (demonstration.text for demonstration in demonstrations)
    tokenizer = make_tokenizer(texts, config.shape.vocabulary, family, listing)
    return LoadedPolicy(make_model(config.shape, tokenizer, seed, family), tokenizer)


def imitate(
    model: PreTrainedModel,
    dialogue: Dialogue,
    whole: Sequence[Demonstration],
    first: Sequence[Demonstration],
    config: WarmStartConfig,
    seed: int,
    progress: Progress = lambda done, total, note: None,
) -> list[float]:
    """Train ``model`` in place on the demonstrations' response tokens. Returns the loss of every step."""
    accelerator = Accelerator()
    optimizers = _optimizers(model, config)
    rates = [optimizer.defaults["lr"] for optimizer in optimizers]
    model, *optimizers = accelerator.prepare(model.train(), *optimizers)
    stream = _Stream(dialogue, whole, first, config, seed)
    losses = []
    for step in range(config.steps):
        share = _schedule(step, config)
        for optimizer, rate in zip(optimizers, rates, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = rate * share
        batch = pad(*stream.draw(step), accelerator.device)
        with accelerator.autocast():
            loss = -response_logprobs(accelerator.unwrap_model(model), batch).mean()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), config.gradient_limit)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        if not math.isfinite(losses[-1]):
            raise LeonardoError(f"the warm start's loss is {losses[-1]} at step {step}", "Lower its learning rates")
        progress(step + 1, config.steps, f"loss {losses[-1]:.2f}")
    model.eval()
    return losses


def _optimizers(model: PreTrainedModel, config: WarmStartConfig) -> list[torch.optim.Optimizer]:
    def is_matrix(name: str, weight: torch.Tensor) -> bool:
        return weight.ndim == 2 and "embed" not in name and config.matrix_learning_rate > 0

    named = list(model.named_parameters())
    matrices = [weight for name, weight in named if is_matrix(name, weight)]
    others = [weight for name, weight in named if not is_matrix(name, weight)]
    adamw = torch.optim.AdamW(others, config.other_learning_rate, betas=(0.9, 0.95), weight_decay=0.0)
    if not matrices:
        return [adamw]
    return [Muon(matrices, config.matrix_learning_rate, weight_decay=config.weight_decay), adamw]


def _schedule(step: int, config: WarmStartConfig) -> float:
    rising = min(1.0, (step + 1) / config.warm_up)
    falling = min(1.0, (1 - step / config.steps) / (1 - config.decay_from))
    return rising * max(falling, 0.03)


class _Stream:
    """Batches without end: of whole demonstrations or first turns, of right ones only at first, of like length."""

    def __init__(
        self,
        dialogue: Dialogue,
        whole: Sequence[Demonstration],
        first: Sequence[Demonstration],
        config: WarmStartConfig,
        seed: int,
    ) -> None:
        self._config = config
        self._random = Random(seed)
        self._queues: dict[tuple[bool, bool], deque[list[int]]] = {}
        self._sequences = [demonstration.tokens(dialogue) for demonstration in (*whole, *first)]
        right = [demonstration.right for demonstration in (*whole, *first)]
        numbers = {True: range(len(whole)), False: range(len(whole), len(right))}
        self._pools = {
            (is_whole, only_right): [number for number in part if right[number] or not only_right]
            for is_whole, part in numbers.items()
            for only_right in (True, False)
        }

    def draw(self, step: int) -> tuple[list[list[int]], list[list[bool]]]:
        """Tokens and response masks of a batch."""
        only_right = step < self._config.right_only * self._config.steps
        key = (self._random.random() < self._config.whole_share, only_right)
        key = key if self._pools[key] else (key[0], False)
        queue = self._queues.setdefault(key, deque())
        if not queue:
            queue.extend(self._batches(self._pools[key]))
        chosen = [self._sequences[number] for number in queue.pop()]
        return [tokens for tokens, _ in chosen], [response for _, response in chosen]

    def _batches(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        """All of ``numbers`` in batches whose members fill the same number of blocks, in random order."""
        shuffled = self._random.sample(numbers, len(numbers))
        by_blocks: dict[int, list[int]] = {}
        for number in shuffled:
            by_blocks.setdefault(len(self._sequences[number][0]) // _BLOCK, []).append(number)
        size = self._config.batch
        batches = [part[at : at + size] for part in by_blocks.values() for at in range(0, len(part), size)]
        return iter(self._random.sample(batches, len(batches)))
