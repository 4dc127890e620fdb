from dataclasses import replace

import pytest
import torch

from leonardo.engine.desk.config import WarmStartConfig
from leonardo.engine.desk.demonstrations import first_turns, whole_demonstrations
from leonardo.engine.desk.dialogue import Dialogue
from leonardo.engine.desk.muon import orthogonal
from leonardo.engine.desk.policy import load_policy
from leonardo.engine.desk.update import digest_of_weights
from leonardo.engine.desk.warm_start import imitate, make_warm_start
from leonardo.errors import FailureClass, InfrastructureError, InputError
from leonardo.rollout.prompts import SUBMIT_COMMAND
from leonardo.rollout.tool_calls import parse_tool_call
from tests.engine.conftest import MICRO

CONFIG = WarmStartConfig(shape=MICRO, steps=30, batch=8, demonstrations=2)


def unreachable(task):
    raise InfrastructureError("no sandbox", failure=FailureClass.SPACE)


def test_imitation_lowers_the_loss(micro, desk_tasks):
    first = first_turns(desk_tasks, CONFIG)
    losses = imitate(micro.model, Dialogue(micro.tokenizer), first, first, CONFIG, seed=0)
    assert len(losses) == CONFIG.steps
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


def test_the_seed_decides_the_data_order(micro, desk_tasks):
    first = first_turns(desk_tasks, CONFIG)
    start = {name: weight.clone() for name, weight in micro.model.state_dict().items()}
    runs = []
    for seed in (0, 0, 1):
        micro.model.load_state_dict(start)
        runs.append(imitate(micro.model, Dialogue(micro.tokenizer), first, first, replace(CONFIG, steps=4), seed))
    assert runs[0] == pytest.approx(runs[1], abs=1e-5)
    assert runs[0] != pytest.approx(runs[2], abs=1e-3)


def test_demonstrations_show_what_the_sandbox_answered(desk_tasks, prepare, tmp_path):
    tasks = [task for task in desk_tasks if task.family in ("edit-json", "rename-file")][:2]
    make_backend = prepare([task.task for task in tasks])
    config = replace(CONFIG, right=1.0, partial=0.0)
    made = whole_demonstrations(tasks, config, make_backend, tmp_path)
    assert len(made) == 4
    assert all(demonstration.right for demonstration in made)
    for demonstration in made:
        commands = [parse_tool_call(text).command for text, _ in demonstration.turns]
        assert commands[-1] == SUBMIT_COMMAND
        assert all(shown.endswith("(exit_code=0)") for _, shown in demonstration.turns[:-1])
    assert '"' in made[0].turns[0][1] if tasks[0].family == "edit-json" else made[2].turns[0][1]
    # the second time they are read, not run
    assert whole_demonstrations(tasks, config, unreachable, tmp_path) == made


def test_only_the_policys_own_tokens_are_imitated(micro, desk_tasks):
    demonstration = first_turns(desk_tasks, CONFIG)[0]
    dialogue = Dialogue(micro.tokenizer)
    tokens, response = demonstration.tokens(dialogue)
    said = [token for token, own in zip(tokens, response, strict=True) if own]
    assert said[-1] == dialogue.end
    assert dialogue.text(said) == demonstration.turns[0][0]


def test_demonstrations_that_cannot_be_run_stop_the_warm_start(desk_tasks, tmp_path):
    with pytest.raises(InfrastructureError, match="demonstrations could not be run") as caught:
        make_warm_start(CONFIG, desk_tasks[:2], desk_tasks[2:4], unreachable, tmp_path, seed=0)
    assert caught.value.failure is FailureClass.SPACE
    assert list(tmp_path.iterdir()) == []


def test_a_warm_start_is_made_once_and_named_by_what_decides_it(desk_tasks, prepare, tmp_path):
    whole, other = desk_tasks[:2], desk_tasks[2:10]
    config = replace(CONFIG, steps=3, demonstrations=1)
    make_backend = prepare([task.task for task in whole])
    folder = make_warm_start(config, whole, other, make_backend, tmp_path, seed=0)
    assert load_policy(folder).model.config.vocab_size == len(load_policy(folder).tokenizer)
    digest = digest_of_weights(load_policy(folder).model.state_dict())
    assert make_warm_start(config, whole, other, unreachable, tmp_path, seed=0) == folder
    assert digest_of_weights(load_policy(folder).model.state_dict()) == digest
    another = make_warm_start(config, whole, other, unreachable, tmp_path, seed=1)  # the demonstrations are kept
    assert another != folder
    assert digest_of_weights(load_policy(another).model.state_dict()) != digest
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_damaged_demonstrations_and_warm_starts_are_made_again(desk_tasks, prepare, tmp_path):
    whole, other = desk_tasks[:2], desk_tasks[2:10]
    config = replace(CONFIG, steps=3, demonstrations=1)
    make_backend = prepare([task.task for task in whole])
    folder = make_warm_start(config, whole, other, make_backend, tmp_path, seed=0)
    digest = digest_of_weights(load_policy(folder).model.state_dict())
    (folder / "warm-start.json").unlink()
    (kept,) = tmp_path.glob("demonstrations-*.jsonl")
    kept.write_bytes(kept.read_bytes()[:-20])
    with pytest.raises(InfrastructureError):  # they are not read, but run
        make_warm_start(config, whole, other, unreachable, tmp_path, seed=0)
    assert make_warm_start(config, whole, other, make_backend, tmp_path, seed=0) == folder
    assert digest_of_weights(load_policy(folder).model.state_dict()) == digest


def test_a_warm_start_without_tasks_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="needs prepared tasks"):
        make_warm_start(CONFIG, [], [], unreachable, tmp_path, seed=0)


@pytest.mark.parametrize("shape", [(3, 8, 20), (2, 20, 8), (1, 16, 16)])
def test_orthogonal_updates_have_singular_values_near_one(shape):
    matrices = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonal(matrices))
    assert values.min() > 0.3
    assert values.max() < 1.3
