"""A pretrained model of a family: dressed, warm-started, and taken to upstream's trainer and back."""

from dataclasses import replace

import pytest
import torch

from leonardo.engine.desk.config import PolicyShape, WarmStartConfig
from leonardo.engine.desk.dialogue import Dialogue
from leonardo.engine.desk.policy import load_policy, load_pretrained, make_model, make_tokenizer, save_policy
from leonardo.engine.desk.update import digest_of_weights
from leonardo.engine.desk.warm_start import make_warm_start
from leonardo.engine.upstream.checkpoint import from_upstream, to_upstream
from leonardo.errors import InputError
from leonardo.rollout.families import load_family
from leonardo.rollout.prompts import messages_of

TINY = PolicyShape(hidden_size=32, intermediate_size=32, heads=1, layers=("full_attention",))
FAMILY = load_family("smollm2")


@pytest.fixture
def pretrained(tmp_path, desk_tasks):
    """A model of Llama's architecture whose tokenizer is as one comes from a hub: without our template and tokens."""
    tokenizer = make_tokenizer([task.task.instruction for task in desk_tasks], 600, FAMILY)
    tokenizer.chat_template, tokenizer.eos_token = "{{ messages[0].content }}", "<|endoftext|>"
    return save_policy(tmp_path / "hub", make_model(TINY, tokenizer, 0, FAMILY), tokenizer)


def test_its_template_and_marks_become_the_familys(pretrained, desk_tasks):
    loaded = load_pretrained(pretrained, FAMILY)
    dialogue = Dialogue(loaded.tokenizer)
    assert loaded.tokenizer.decode([dialogue.end]) == "<|im_end|>"
    assert loaded.model.config.eos_token_id == loaded.model.generation_config.eos_token_id == dialogue.end
    assert "Tool: bash(command)" in loaded.tokenizer.decode(dialogue.prompt(messages_of(desk_tasks[0].task)))


def test_a_model_of_another_family_is_an_input_error(pretrained):
    with pytest.raises(InputError, match="the tokenizer has no"):
        load_pretrained(pretrained, load_family("llama3"))


def test_a_warm_start_from_it_keeps_its_vocabulary_and_is_named_by_it(pretrained, desk_tasks, prepare, tmp_path):
    config = replace(WarmStartConfig(), shape=TINY, steps=2, batch=4, demonstrations=1, matrix_learning_rate=0.0)
    make_backend = prepare([task.task for task in desk_tasks[:2]])

    def start(folder):
        return make_warm_start(
            config, desk_tasks[:2], desk_tasks[2:6], make_backend, tmp_path, 0, family=FAMILY, pretrained=folder
        )

    made = start(pretrained)
    before, after = load_policy(pretrained), load_policy(made)
    assert after.tokenizer.get_vocab() == before.tokenizer.get_vocab()
    assert digest_of_weights(after.model.state_dict()) != digest_of_weights(before.model.state_dict())
    assert start(None) != made


def test_a_checkpoint_of_another_family_goes_as_it_is(pretrained, tmp_path):
    sent = to_upstream(pretrained, tmp_path / "run")
    assert sent.name == "start"  # upstream takes a name with qwen3.5 in it for one with a vision tower
    back = load_policy(from_upstream(sent, tmp_path / "back")).model.state_dict()
    for name, weight in load_policy(pretrained).model.state_dict().items():
        assert torch.equal(weight.to(torch.bfloat16).float(), back[name])
