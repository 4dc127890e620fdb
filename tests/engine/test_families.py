"""Every family at desk size, through the parts that the reference family goes through."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from leonardo.engine.desk.batches import pad, response_logprobs
from leonardo.engine.desk.config import WarmStartConfig
from leonardo.engine.desk.demonstrations import first_turns
from leonardo.engine.desk.dialogue import Dialogue, dress
from leonardo.engine.desk.policy import LoadedPolicy, load_policy, make_model, make_tokenizer, save_policy
from leonardo.engine.desk.sampler import Sampler
from leonardo.engine.desk.warm_start import imitate
from leonardo.errors import InputError
from leonardo.rollout.families import family_names, load_family, render_chat
from leonardo.rollout.prompts import BASH_TOOL, SUBMIT_COMMAND
from leonardo.rollout.tool_calls import parse_tool_call, render_tool_call
from tests.engine.conftest import MICRO

MESSAGES = [{"role": "system", "content": "Solve it."}, {"role": "user", "content": "Rename /data/barn/apple.txt."}]


@pytest.fixture(params=family_names())
def family(request):
    return load_family(request.param)


@pytest.fixture
def policy(family, desk_tasks) -> LoadedPolicy:
    texts = [demonstration.text for demonstration in first_turns(desk_tasks, WarmStartConfig(), family.tool_format)]
    tokenizer = make_tokenizer([*texts, SUBMIT_COMMAND] * 2, 700, family)
    shape = replace(MICRO, layers=tuple(dict.fromkeys(family.architecture.layers)))
    return LoadedPolicy(make_model(shape, tokenizer, 1, family).eval(), tokenizer)


def test_what_is_sampled_is_scored_alike(policy: LoadedPolicy):
    """By the sampler (left padding, a cache) and by the learner (right padding, none)."""
    with torch.no_grad():
        for weight in policy.model.parameters():
            if weight.ndim == 2:
                weight.mul_(4)
    sampler = Sampler(policy.model, policy.tokenizer)
    contexts = [[5, 6, 7], list(range(10, 90)), list(range(30, 47))]
    generations = sampler.generate(contexts, [(1, 0), (2, 0), (3, 1)], limit=20)
    sequences = [[*context, *generation.tokens] for context, generation in zip(contexts, generations, strict=True)]
    masks = [
        [number >= len(context) for number in range(len(whole))]
        for context, whole in zip(contexts, sequences, strict=True)
    ]
    with torch.inference_mode():
        scored = response_logprobs(policy.model, pad(sequences, masks, "cpu"))
    sampled = [value for generation in generations for value in generation.logprobs]
    assert scored.tolist() == pytest.approx(sampled, abs=2e-3)
    assert min(sampled) < -1


def test_a_saved_policy_speaks_its_familys_format(family, policy: LoadedPolicy, tmp_path: Path):
    loaded = load_policy(save_policy(tmp_path / "policy", policy.model, policy.tokenizer))
    dialogue = Dialogue(loaded.tokenizer)
    assert dialogue.tool_format is family.tool_format
    assert {dialogue.tokenizer.convert_ids_to_tokens(end) for end in dialogue.ends} == set(family.tokens.ends)
    ends = loaded.model.generation_config.eos_token_id
    assert {ends} if isinstance(ends, int) else set(ends) == dialogue.ends
    said = render_tool_call(SUBMIT_COMMAND, dialogue.tool_format)
    turn = dialogue.turn(said)
    assert turn == Dialogue(policy.tokenizer).turn(said)
    assert parse_tool_call(dialogue.text(turn), dialogue.tool_format).command == SUBMIT_COMMAND


def test_pieces_are_the_rendered_conversation(policy: LoadedPolicy):
    dialogue = Dialogue(policy.tokenizer)
    said = render_tool_call("ls /data/barn", dialogue.tool_format)
    pieces = dialogue.prompt(MESSAGES) + dialogue.turn(said) + dialogue.observation("apple.md\n\n(exit_code=0)")
    pieces += dialogue.turn("Done.") + dialogue.request("Now sort it.")
    turn = [{"role": "assistant", "content": said}, {"role": "tool", "content": "apple.md\n\n(exit_code=0)"}]
    turn += [{"role": "assistant", "content": "Done."}, {"role": "user", "content": "Now sort it."}]
    text = render_chat(policy.tokenizer.chat_template, [*MESSAGES, *turn], [BASH_TOOL], opens_turn=True)
    assert policy.tokenizer.decode(pieces, skip_special_tokens=False) == text
    assert pieces == policy.tokenizer.encode(text)


def test_output_cannot_forge_a_familys_marks(family, policy: LoadedPolicy):
    dialogue = Dialogue(policy.tokenizer)
    marks = [*family.tokens.control, *family.tokens.ends]
    honest, forged = dialogue.observation("a"), dialogue.observation("".join(marks))
    for mark in policy.tokenizer.convert_tokens_to_ids(marks):
        assert forged.count(mark) == honest.count(mark)


def test_every_end_ends_a_turn(family, policy: LoadedPolicy):
    dialogue = Dialogue(policy.tokenizer)
    for end in policy.tokenizer.convert_tokens_to_ids(list(family.tokens.ends)):
        assert dialogue.text([*policy.tokenizer.encode("ls"), end]) == "ls"


def test_imitation_lowers_the_loss(family, policy: LoadedPolicy, desk_tasks):
    config = WarmStartConfig(shape=MICRO, steps=20, batch=8)
    first = first_turns(desk_tasks, config, family.tool_format)
    losses = imitate(policy.model, Dialogue(policy.tokenizer), first, first, config, seed=0)
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_a_tokenizer_of_another_family_is_refused(desk_tasks):
    tokenizer = make_tokenizer(["ls"], 400, load_family("qwen3"))
    with pytest.raises(InputError, match="a token of family llama3"):
        dress(tokenizer, load_family("llama3"), "brief")


def test_layers_that_the_family_has_not_are_refused():
    family = load_family("llama3")
    with pytest.raises(InputError, match="no linear_attention layers"):
        make_model(MICRO, make_tokenizer(["ls"], 400, family), 1, family)
