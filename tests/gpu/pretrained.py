"""Make a Hugging Face folder of a GGUF file, where no hub can be reached: of the SmolLM2 that a Python package brings.

The quantised weights are written out in bfloat16; so what is trained afterwards starts from the quantised model.

Usage: ``python -m tests.gpu.pretrained FILE.gguf FOLDER``, or a folder with the file's pieces, 1 2 3, in its place.
"""

import sys
import tempfile
from pathlib import Path

import torch
from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from leonardo.engine.desk.policy import fill_folder, write_folder


def convert(gguf: Path, folder: Path) -> Path:
    """Write the model and the tokenizer in ``gguf`` to ``folder``."""
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    settings = quantised.config.to_dict()
    settings.pop("quantization_config", None)
    settings.pop("_name_or_path", None)
    config = AutoConfig.for_model(**settings)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(quantised.state_dict())

    def fill(place: Path) -> None:
        fill_folder(place, model, _tokenizer(gguf))
        license_ = GGUFReader(gguf).fields["general.license"].contents()  # else the card of what is trained lacks it
        (place / "README.md").write_text(f"---\nlicense: {license_}\n---\n", encoding="utf-8")

    return write_folder(folder, fill)


def _tokenizer(gguf: Path) -> PreTrainedTokenizerFast:
    """The file holds pieces and merges; how text is split before them, and put together after, is by its name there."""
    fields = GGUFReader(gguf).fields
    kind = fields["tokenizer.ggml.pre"].contents()
    if kind != "smollm":
        raise SystemExit(f"{gguf}: it splits text as {kind}; only smollm is known here")
    tokenizer: Tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).backend_tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokens = fields["tokenizer.ggml.tokens"].contents()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=tokens[fields["tokenizer.ggml.bos_token_id"].contents()],
        eos_token=tokens[fields["tokenizer.ggml.eos_token_id"].contents()],
        unk_token=tokens[fields["tokenizer.ggml.unknown_token_id"].contents()],
        chat_template=fields["tokenizer.chat_template"].contents(),
        clean_up_tokenization_spaces=False,
    )


def main() -> int:
    """Convert a file, or the pieces of one."""
    given, folder = map(Path, sys.argv[1:])
    if given.is_file():
        print(convert(given, folder))
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "model.gguf"
        with whole.open("wb") as stream:
            for piece in sorted(given.iterdir(), key=lambda piece: int(piece.name)):
                stream.write(piece.read_bytes())
        print(convert(whole, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
