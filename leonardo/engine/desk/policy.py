"""The desk policy: a tiny model of the reference architecture, as an ordinary Hugging Face folder.

The architecture is the real class (``Qwen3_5ForCausalLM``: gated delta rule and full attention in turn), in shapes that
vLLM's CPU build takes as well (head dimension 64).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3_5ForCausalLM, Qwen3_5TextConfig

from leonardo.errors import InputError

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
FRAME_TOKENS = ("\n<function=bash>\n<parameter=command>\n", "\n</parameter>\n</function>\n")
"""Ordinary text to every reader, one token each to the model: a tool call costs it what its command costs."""

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")

# Words with the sign before them, single digits, and runs of signs: so that a name in an instruction and the same name
# in a command are the same token.
_WORDS = r"[ /._-]?[A-Za-z]+|\d|\n+| ?[^\sA-Za-z\d]+|\s+"


@dataclass(frozen=True)
class PolicyShape:
    """Sizes of the model: small enough to learn on two cores in two minutes.

    Attributes:
        layers: L for the gated delta rule, F for full attention.
        vocabulary: at most; bytes that were never merged stay tokens, so any text can be written.
    """

    layers: str = "LLF"
    hidden: int = 128
    intermediate: int = 256
    heads: int = 2
    key_value_heads: int = 1
    linear_heads: int = 2
    linear_head_dimension: int = 64
    vocabulary: int = 1536
    context: int = 2048


def train_tokenizer(texts: Iterable[str], shape: PolicyShape) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer trained on ``texts``, with the special tokens and the chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.vocabulary,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in FRAME_TOKENS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        model_max_length=shape.context,
    )
    fast.chat_template = CHAT_TEMPLATE.read_text()
    return fast


def make_model(tokenizer: PreTrainedTokenizerFast, shape: PolicyShape, seed: int) -> Qwen3_5ForCausalLM:
    """A new model with random weights of ``seed``, in float32."""
    kinds = {"L": "linear_attention", "F": "full_attention"}
    config = Qwen3_5TextConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=len(shape.layers),
        layer_types=[kinds[layer] for layer in shape.layers],
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        head_dim=64,
        linear_num_key_heads=shape.linear_heads,
        linear_num_value_heads=shape.linear_heads,
        linear_key_head_dim=shape.linear_head_dimension,
        linear_value_head_dim=shape.linear_head_dimension,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen3_5ForCausalLM(config)


def save_policy(model: Qwen3_5ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write an ordinary Hugging Face folder, whole or not at all."""
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    if unfinished.exists():
        for path in unfinished.iterdir():
            path.unlink()
    model.save_pretrained(unfinished)
    tokenizer.save_pretrained(unfinished)
    unfinished.rename(folder)


def load_policy(folder: Path) -> tuple[Qwen3_5ForCausalLM, PreTrainedTokenizerFast]:
    """Model (float32, evaluation mode) and tokenizer of a folder. Raises InputError where they cannot be read."""
    try:
        model = Qwen3_5ForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"{folder} holds no policy ({reason})", "Give the folder of a desk policy") from error
    return model.eval(), tokenizer
