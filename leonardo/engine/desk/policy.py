"""The tiny policy: tokenizer and model made from nothing, kept as an ordinary Hugging Face folder."""

import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3_5ForCausalLM,
)
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.utils import logging

from leonardo.engine.desk.config import PolicyShape
from leonardo.errors import InputError

PADDING, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

# The format's own text, a token each, so that a turn is mostly its command.
_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_FRAMES = (
    "system\n", "user\n", "assistant\n", "<tool_response>\n", "\n\n(exit_code=",
    "\n<function=bash>\n<parameter=command>\n", "\n</parameter>\n</function>\n",
)  # fmt: skip

# A word keeps the space, slash, dot or dash before it: "/data/barn/apple.txt" is four pieces.
_PIECES = r" ?[/.-]?[A-Za-z_]+| ?\d{1,3}|\n+| ?[^\sA-Za-z_\d]+|\s+"


@dataclass(frozen=True)
class LoadedPolicy:
    """A model and its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast


def make_tokenizer(texts: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on ``texts``; any text comes back from it unchanged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [PADDING, TURN_START, TURN_END]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - len(_TAGS) - len(_FRAMES),
        special_tokens=control,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in (*_TAGS, *_FRAMES)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=PADDING,
        additional_special_tokens=[TURN_START],
        clean_up_tokenization_spaces=False,
        chat_template=files(__package__).joinpath("chat_template.j2").read_text(encoding="utf-8"),
    )


def make_model(shape: PolicyShape, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3_5ForCausalLM:
    """A model with random weights from ``seed``, in float32."""
    _hush()
    config = Qwen3_5TextConfig(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=len(shape.layers),
        layer_types=list(shape.layers),
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.head_dim,
        linear_num_key_heads=shape.linear_heads,
        linear_num_value_heads=shape.linear_heads,
        linear_key_head_dim=shape.linear_head_dim,
        linear_value_head_dim=shape.linear_head_dim,
        max_position_embeddings=shape.positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3_5ForCausalLM(config)
    model.generation_config = GenerationConfig(
        do_sample=True, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model


def save_policy(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Path:
    """Write a Hugging Face folder, which appears whole or not at all and replaces one that is there."""
    return write_folder(folder, lambda place: fill_folder(place, model, tokenizer))


def fill_folder(place: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write a Hugging Face folder's files into ``place``."""
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)


def load_policy(folder: Path) -> LoadedPolicy:
    """Read a Hugging Face folder, in float32. Raises InputError where there is none."""
    if not (folder / "config.json").is_file():
        raise InputError(f"{folder} is no model folder (config.json is missing)", "Name a folder that a run has saved")
    _hush()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return LoadedPolicy(model, AutoTokenizer.from_pretrained(folder))


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
