"""The tiny policy: tokenizer and model made from nothing, kept as an ordinary Hugging Face folder."""

import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import logging

from leonardo.engine.desk.config import PolicyShape
from leonardo.engine.desk.dialogue import dress, turn_ends
from leonardo.errors import InputError
from leonardo.rollout.families import REFERENCE, Family, Listing, load_family

# A word keeps the space, slash, dot or dash before it: "/data/barn/apple.txt" is four pieces.
_PIECES = r" ?[/.-]?[A-Za-z_]+| ?\d{1,3}|\n+| ?[^\sA-Za-z_\d]+|\s+"


@dataclass(frozen=True)
class LoadedPolicy:
    """A model and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast


def make_tokenizer(
    texts: Iterable[str], vocabulary: int, family: Family | None = None, listing: Listing = "brief"
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on ``texts``; any text comes back from it unchanged.

    Args:
        texts: what it will be used on.
        vocabulary: at most so many tokens.
        family: whose tokens and chat template it has; the reference family's by default.
        listing: how the template shows tools.
    """
    family = family or load_family(REFERENCE)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    pieces = (*family.tokens.pieces, *family.desk.pieces)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(pieces),
        special_tokens=[family.tokens.padding, *family.tokens.control, *family.tokens.ends],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in pieces])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
    return dress(made, family, listing)


def make_model(
    shape: PolicyShape, tokenizer: PreTrainedTokenizerFast, seed: int, family: Family | None = None
) -> PreTrainedModel:
    """A model of the family's architecture (the reference's by default) with random weights from ``seed``, in float32.

    Raises InputError where the family has no such layers.
    """
    _hush()
    family = family or load_family(REFERENCE)
    architecture = family.architecture
    if strange := set(shape.layers) - set(architecture.layers):
        raise InputError(
            f"{architecture.type} has no {min(strange)} layers",
            f"It has: {', '.join(sorted(set(architecture.layers)))}",
        )
    settings = {
        "vocab_size": len(tokenizer),
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": len(shape.layers),
        "layer_types": list(shape.layers),
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.head_dim,
        "max_position_embeddings": shape.positions,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if "linear_attention" in shape.layers:
        settings |= {
            "linear_num_key_heads": shape.linear_heads,
            "linear_num_value_heads": shape.linear_heads,
            "linear_key_head_dim": shape.linear_head_dim,
            "linear_value_head_dim": shape.linear_head_dim,
        }
    config = AutoConfig.for_model(architecture.type, **(architecture.settings | family.desk.settings | settings))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config = GenerationConfig(do_sample=True)
    _know_ends(model, tokenizer)
    return model


def save_policy(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Path:
    """Write a Hugging Face folder, which appears whole or not at all and replaces one that is there."""
    return write_folder(folder, lambda place: fill_folder(place, model, tokenizer))


def fill_folder(place: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a Hugging Face folder's files into ``place``."""
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)


def fix_threads() -> None:
    """Leave PyTorch one thread of this process: a run then depends on its seed, not on how many cores share a sum."""
    torch.set_num_threads(1)


def load_policy(folder: Path) -> LoadedPolicy:
    """Read a Hugging Face folder, in float32. Raises InputError where there is none, or it cannot be read."""
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} is no model folder (config.json is missing)", "Name a folder that a run has saved")
    _hush()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        return LoadedPolicy(model, AutoTokenizer.from_pretrained(folder))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        said = " ".join(str(error).split())[:160]
        raise InputError(f"{folder} holds no model that can be read ({said})", "Is it whole? Save it again") from error


def load_pretrained(folder: Path, family: Family, listing: Listing = "brief") -> LoadedPolicy:
    """Read a pretrained model of ``family``, whose template and marks of a turn replace its tokenizer's own.

    Raises InputError: no model folder, or its tokenizer lacks a token of the family.
    """
    loaded = load_policy(folder)
    tokenizer = dress(loaded.tokenizer, family, listing)
    _know_ends(loaded.model, tokenizer)
    return LoadedPolicy(loaded.model, tokenizer)


def _know_ends(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Have the model's files name the tokens that end a turn, and the padding: other engines read them there."""
    first, *others = turn_ends(tokenizer)
    model.config.eos_token_id = first
    model.generation_config.eos_token_id = [first, *others] if others else first
    for settings in (model.config, model.generation_config):
        settings.pad_token_id = tokenizer.pad_token_id


def write_folder(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Have ``fill`` write into a temporary folder beside ``folder`` and rename it: whole or absent."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        fill(temporary)
        temporary.chmod(0o755)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _hush() -> None:
    """No progress bars for files of 2 MB, and no advice to install GPU kernels: the desk has no use for them."""
    logging.disable_progress_bar()
    logging.set_verbosity_error()
