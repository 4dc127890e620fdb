"""A policy as the checkpoint that upstream's trainer and vLLM expect, and back.

The reference models are ``Qwen3_5ForConditionalGeneration``: a text model below ``model.language_model`` and a vision
tower. vLLM serves only that class; the desk policy is the text model alone, so it gets a vision tower of the least size,
which no prompt ever reaches. Upstream's trainer saves the text model alone, under the text model's names. Models of
other families go as they are.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5Config
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForConditionalGeneration

from leonardo.engine.desk.policy import load_policy, save_policy, write_folder
from leonardo.errors import InputError
from leonardo.files import write_json

NAME = "qwen3.5"
"""Stands in the folder's name: upstream tells by it that vLLM's names have ``language_model.`` in front."""

_TEXT_MODEL = "qwen3_5_text"

_SMALL_VISION = {
    "depth": 1,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_heads": 1,
    "num_position_embeddings": 16,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
}


def to_upstream(policy: Path, place: Path) -> Path:
    """Write ``policy`` to a new folder in ``place``, in bfloat16, as upstream trains it.

    Raises:
        InputError: ``policy`` is no policy folder.
    """
    loaded = load_policy(policy)
    if loaded.model.config.model_type != _TEXT_MODEL:
        return _with_one_rope(save_policy(place / "start", loaded.model.to(torch.bfloat16), loaded.tokenizer))
    text = loaded.model.config.to_dict() | {"dtype": "bfloat16"}
    text.pop("_name_or_path", None)  # a path of this machine
    vocabulary = len(loaded.tokenizer)
    config = Qwen3_5Config(
        text_config=text,
        vision_config={**_SMALL_VISION, "out_hidden_size": text["hidden_size"]},
        tie_word_embeddings=True,
        # marks of pictures, which no prompt holds: ids that the tokenizer never gives
        image_token_id=vocabulary,
        video_token_id=vocabulary + 1,
        vision_start_token_id=vocabulary + 2,
        vision_end_token_id=vocabulary + 3,
        architectures=["Qwen3_5ForConditionalGeneration"],
        dtype="bfloat16",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vision = Qwen3_5ForConditionalGeneration(config).model.visual.state_dict()
    weights = {
        name.replace("model.", "model.language_model.", 1): value
        for name, value in loaded.model.state_dict().items()
        if name != "lm_head.weight"  # tied
    } | {f"model.visual.{name}": value for name, value in vision.items()}

    def fill(place: Path) -> None:
        config.save_pretrained(place)
        loaded.model.generation_config.save_pretrained(place)
        loaded.tokenizer.save_pretrained(place)
        stored = {name: value.to(torch.bfloat16).contiguous() for name, value in weights.items()}
        save_file(stored, place / "model.safetensors", metadata={"format": "pt"})

    return write_folder(place / f"start-{NAME}", fill)


def from_upstream(checkpoint: Path, target: Path) -> Path:
    """Write what the trainer saved as a desk policy, in float32, for the harness that evaluated the base."""
    if not (checkpoint / "config.json").is_file():
        raise InputError(f"{checkpoint} holds no checkpoint", "See the trainer's log: did it end before it saved one?")
    loaded = load_policy(checkpoint)

    def fill(place: Path) -> None:
        loaded.model.save_pretrained(place)
        AutoTokenizer.from_pretrained(checkpoint).save_pretrained(place)

    return write_folder(target, fill)


def _with_one_rope(folder: Path) -> Path:
    """Write the rotary settings as the published OLMo 3 checkpoints and vLLM have them: one set, full attention's.

    transformers writes a set for each kind of layer. vLLM gives sliding layers the same base without scaling.
    """
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    rope = config.get("rope_parameters") or {}
    if set(rope) == {"full_attention", "sliding_attention"}:
        write_json(path, config | {"rope_parameters": rope["full_attention"]})
    return folder
