"""What is handed over is served by vLLM, in upstream's environment, and says there what it says in transformers."""

import ast
import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

from leonardo.engine.desk.config import PolicyShape
from leonardo.engine.desk.dialogue import Dialogue
from leonardo.engine.desk.policy import load_policy, make_model, make_tokenizer, save_policy
from leonardo.engine.upstream.checkpoint import to_upstream
from leonardo.report.cardfacts import PARSERS
from leonardo.rollout.families import family_names, load_family
from leonardo.rollout.prompts import BASH_TOOL
from leonardo.settings import LAUNCH

PYTHON = Path(os.environ.get("LEONARDO_UPSTREAM_PYTHON") or LAUNCH.parent / ".venv-upstream/bin/python")
SHAPES = {
    "qwen3.5": PolicyShape(hidden_size=64, intermediate_size=64, heads=1, linear_heads=1),
    "olmo3": PolicyShape(
        hidden_size=64, intermediate_size=64, heads=1, layers=("sliding_attention", "full_attention")
    ),
}

# vLLM's names for its settings are its interface; the rest is ours
SERVED = """
import json, sys
from vllm import LLM, SamplingParams
folder, prompts = sys.argv[1], json.loads(sys.argv[2])
if __name__ == "__main__":
    model = LLM(folder, dtype="bfloat16", enforce_eager=True, max_model_len=512, max_num_seqs=2,
                language_model_only="qwen3.5" in folder)
    asked = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=1)
    found = model.generate([{"prompt_token_ids": prompt} for prompt in prompts], asked)
    print("FOUND " + json.dumps([list(each.outputs[0].token_ids) for each in found]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_vllm_serves_a_checkpoint(name: str, tmp_path: Path) -> None:
    if not PYTHON.is_file():
        pytest.skip("upstream's environment is not there (make upstream-env, or LEONARDO_UPSTREAM_PYTHON=...)")
    family = load_family(name)
    tokenizer = make_tokenizer(["Solve it. ls -l /data"], 600, family)
    model = make_model(SHAPES[name], tokenizer, seed=1, family=family)
    policy = save_policy(tmp_path / "policy", model, tokenizer)
    served = to_upstream(policy, tmp_path / "served")
    dialogue = Dialogue(tokenizer)
    prompts = [dialogue.prompt([{"role": "user", "content": text}], [BASH_TOOL]) for text in ("Solve it.", "ls")]
    done = subprocess.run(
        [PYTHON, "-c", SERVED, served, json.dumps(prompts)],
        capture_output=True, text=True, timeout=900,
        env=os.environ | {
            "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
            "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        },
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stdout[-3000:] + done.stderr[-2000:]
    loaded = load_policy(policy).model.to(torch.bfloat16)
    for prompt, found in zip(prompts, json.loads(lines[0].removeprefix("FOUND ")), strict=True):
        logits = loaded(torch.tensor([[*prompt, *found]])).logits[0, len(prompt) - 1 : -1].float()
        best = logits.max(-1).values
        chosen = logits.gather(-1, torch.tensor(found)[:, None])[:, 0]
        # an untrained model's best tokens lie close together, and bfloat16 rounds
        assert torch.all(best - chosen < 0.05 * logits.std()), (found, logits.argmax(-1).tolist())


def test_a_card_names_parsers_as_vllm_does() -> None:
    if not PYTHON.is_file():
        pytest.skip("upstream's environment is not there (make upstream-env, or LEONARDO_UPSTREAM_PYTHON=...)")
    where = "import importlib.util; print(importlib.util.find_spec('vllm').submodule_search_locations[0])"
    done = subprocess.run([PYTHON, "-c", where], capture_output=True, text=True, timeout=60, check=True)
    source = Path(done.stdout.strip(), "tool_parsers/__init__.py").read_text(encoding="utf-8")
    (known,) = (
        ast.literal_eval(line.value)
        for line in ast.parse(source).body
        if isinstance(line, ast.Assign) and "TO_REGISTER" in ast.unparse(line.targets[0])
    )
    for family in map(load_family, family_names()):
        module, parser = family.upstream.parser.removeprefix("vllm.tool_parsers.").split(":")
        assert known[PARSERS[parser]] == (module, parser)
