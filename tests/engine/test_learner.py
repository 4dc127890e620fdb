import json
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from accelerate import Accelerator

from leonardo.engine.desk.batches import pad, response_logprobs
from leonardo.engine.desk.config import LearnerConfig, WarmStartConfig
from leonardo.engine.desk.demonstrations import Demonstration
from leonardo.engine.desk.dialogue import Dialogue
from leonardo.engine.desk.learner import Groups, train
from leonardo.engine.desk.policy import LoadedPolicy, load_policy, save_policy
from leonardo.engine.desk.update import Learner, digest_of_weights
from leonardo.engine.desk.warm_start import imitate
from leonardo.errors import FailureClass, InfrastructureError, InputError, LeonardoError
from leonardo.gates.steps import StepRecord
from leonardo.rollout.episode import EpisodeSettings, Rollout
from leonardo.rollout.prompts import SUBMIT_COMMAND, messages_of
from leonardo.rollout.tool_calls import render_tool_call
from leonardo.tasks.verifier import verifier_files
from tests.engine.conftest import MICRO
from tests.engine.rollouts import rollout

CONFIG = LearnerConfig(
    steps=2,
    groups=3,
    group_size=6,
    wanted_groups=1,
    rounds=3,
    learning_rate=2e-4,
    episode=EpisodeSettings(steps=2, turn_tokens=40, live=18, threads=4),
)


def test_groups_are_kept_only_with_variance_among_valid_rewards():
    groups = Groups()
    groups.add(
        [
            [rollout(1), rollout(0), rollout(None)],  # kept, without its failure
            [rollout(1), rollout(1)],  # no variance
            [rollout(0), rollout(0), rollout(None)],  # no variance: the failure is no zero and no one
            [rollout(1), rollout(None), rollout(None)],  # too small
        ]
    )
    assert [[item.reward for item in group] for group in groups.kept] == [[1, 0]]
    assert (groups.zero_variance, groups.too_small, len(groups.sampled)) == (2, 1, 4)


def sampled(policy: LoadedPolicy, tokens: Sequence[int], reward: float) -> Rollout:
    """A rollout with the log-probabilities that the policy gives its tokens."""
    with torch.inference_mode():
        values = response_logprobs(policy.model, pad([tokens], [[False, *[True] * (len(tokens) - 1)]], "cpu"))
    return rollout(reward, tokens, [0.0, *values.tolist()])


def test_an_update_makes_good_rollouts_likelier_and_bad_ones_less_likely(micro):
    good, bad = sampled(micro, [5, 6, 7, 8], 1.0), sampled(micro, [5, 9, 10], 0.0)
    learner = Learner(replace(CONFIG, minibatches=1, learning_rate=1e-2), micro.model, Accelerator(cpu=True))
    statistics = learner.update([[good, bad]], step=5)
    assert sum(sampled(micro, good.tokens, 1).logprobs) > sum(good.logprobs)
    assert sum(sampled(micro, bad.tokens, 1).logprobs) < sum(bad.logprobs)
    assert statistics.tokens == 5
    assert statistics.ratio_mean == pytest.approx(1, abs=1e-5)
    assert statistics.first_pass_ratio_max_deviation < 1e-5
    assert 0 <= statistics.difference_mean <= statistics.difference_max < 1e-5
    assert statistics.loss == pytest.approx(-(3 * 0.5 - 2 * 0.5) / 5, abs=1e-5)  # ratios are 1
    assert statistics.masked == 0
    assert statistics.update_norm > 0
    assert statistics.moved_share > 0.1
    assert not statistics.non_finite


def test_micro_batches_do_not_change_the_update(micro):
    start = {name: weight.clone() for name, weight in micro.model.state_dict().items()}
    group = [sampled(micro, [5, *range(20, 20 + n)], float(n % 2)) for n in range(2, 9)]
    ends, losses = [], []
    for size in (2, 7):
        micro.model.load_state_dict(start)
        learner = Learner(replace(CONFIG, minibatches=1, micro_batch=size), micro.model, Accelerator(cpu=True))
        losses.append(learner.update([group], step=5).loss)
        ends.append({name: weight.clone() for name, weight in micro.model.state_dict().items()})
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    differences = [(ends[0][name] - ends[1][name]).abs().mean().item() for name in start]
    assert max(differences) < 1e-4


def test_later_passes_see_the_trust_region(micro):
    group = [sampled(micro, [5, 6, 7, 8], 1.0), sampled(micro, [5, 9, 10], 0.0)]
    config = replace(CONFIG, passes=30, minibatches=1, learning_rate=3e-2, gradient_limit=100.0)
    statistics = Learner(config, micro.model, Accelerator(cpu=True)).update([group], step=5)
    assert statistics.first_pass_ratio_max_deviation < 1e-5
    assert 0 <= statistics.difference_mean <= statistics.difference_max < 1e-5
    assert statistics.ratio_max > 1.1
    assert statistics.masked > 0
    assert statistics.divergence_max > config.threshold


def test_a_gradient_that_is_not_finite_is_named_and_not_applied(micro):
    group = [sampled(micro, [5, 6, 7], 1.0), sampled(micro, [5, 9, 10], 0.0)]
    before = digest_of_weights(micro.model.state_dict())
    broken = replace(group[0], logprobs=(0.0, -math.inf, -1.0))
    statistics = Learner(CONFIG, micro.model, Accelerator(cpu=True)).update([[broken, group[1]]], step=1)
    assert statistics.non_finite[0] == "loss"
    assert any(name.endswith("(gradient)") for name in statistics.non_finite)
    assert digest_of_weights(micro.model.state_dict()) == before


@pytest.fixture
def submitting(micro, make_task):
    """A policy that has learned to submit at once, and tasks whose verifier tosses a coin."""
    verifier = verifier_files("#!/bin/bash\n[ $((SRANDOM % 2)) = 0 ]\n")
    tasks = [
        make_task(
            "true", task_id=f"coin-{n}", image="ubuntu:22.04", tests=verifier, kind="coin", instruction=f"Go {n}."
        )
        for n in range(4)
    ]
    demonstrations = [
        Demonstration(messages_of(task), ((render_tool_call(SUBMIT_COMMAND), ""),), right=True) for task in tasks
    ]
    config = WarmStartConfig(shape=MICRO, steps=120, batch=4, right_only=0.0)
    imitate(micro.model, Dialogue(micro.tokenizer), demonstrations, demonstrations, config, seed=0)
    return micro, tasks


def test_training_writes_records_and_a_policy(submitting, prepare, tmp_path):
    policy, tasks = submitting
    folder = save_policy(tmp_path / "start", policy.model, policy.tokenizer)
    seen: list[StepRecord] = []
    run = tmp_path / "run"
    trained = train(CONFIG, folder, tasks, run, 3, prepare(tasks), seen.append)
    lines = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert [StepRecord(**line) for line in lines] == seen
    for line in lines:
        assert line["groups"] == len(line["rewards"]) == len(line["task_ids"])
        assert line["rollouts"] == line["groups"] * CONFIG.group_size
        assert line["groups_kept"] >= 1, line["rewards"]
        assert line["parsed_action_share"] > 0.8
        assert line["first_pass_ratio_max_deviation"] < 1e-3
        assert 0 <= line["logprob_difference_mean"] <= line["logprob_difference_max"] < 1e-3
        assert line["update_norm"] > 0
        assert line["finite"] is True
        assert line["infrastructure_failures"] == 0
        assert line["response_length_mean"] == pytest.approx(line["tokens"]["response"] / line["rollouts"])
        assert line["entropy_mean"] > 0
        assert 0 <= line["overlong_share"] + line["step_limit_share"] < 0.2
        assert line["sandbox"]["reset_ms"][0] > 0
    assert lines[1]["weights_digest"] == digest_of_weights(load_policy(trained).model.state_dict())
    assert lines[0]["weights_digest"] != lines[1]["weights_digest"]
    assert json.loads((run / "config.json").read_text())["seed"] == 3
    with pytest.raises(InputError, match="holds a run already"):
        train(CONFIG, folder, tasks, run, 3, prepare(tasks))


def test_a_run_whose_sandboxes_all_fail_learns_nothing_and_says_so(submitting, tmp_path):
    policy, tasks = submitting

    def refusing(task):
        raise InfrastructureError("no sandbox", failure=FailureClass.SPACE)

    folder = save_policy(tmp_path / "start", policy.model, policy.tokenizer)
    (record,) = records_of(train_once(folder, tasks, tmp_path / "run", refusing))
    assert all(reward is None for group in record["rewards"] for reward in group)
    assert record["failures_by_class"] == {"space": record["rollouts"]}
    assert (record["groups_kept"], record["dropped_groups"]) == (0, CONFIG.groups * CONFIG.rounds)
    assert (record["update_norm"], record["parameters_moved_share"]) == (0, 0)
    for unknown in ("reward_mean", "mask_fraction", "loss", "response_length_mean", "entropy_mean", "overlong_share"):
        assert record[unknown] is None, unknown
    assert record["weights_digest"] == digest_of_weights(policy.model.state_dict())


def test_groups_without_variance_move_no_weight(submitting, prepare, tmp_path):
    policy, tasks = submitting
    sure = [replace(task, tests=verifier_files("#!/bin/bash\nexit 1\n")) for task in tasks]
    folder = save_policy(tmp_path / "start", policy.model, policy.tokenizer)
    (record,) = records_of(train_once(folder, sure, tmp_path / "run", prepare(sure)))
    assert record["zero_variance_share"] == 1
    assert record["groups"] == CONFIG.groups * CONFIG.rounds  # it sampled again, up to the bound
    assert record["weights_digest"] == digest_of_weights(policy.model.state_dict())


def train_once(folder, tasks, run, make_backend):
    train(replace(CONFIG, steps=1), folder, tasks, run, 0, make_backend)
    return run


def records_of(run):
    return [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]


def test_a_loss_that_is_not_finite_stops_the_run_and_names_the_step(submitting, prepare, tmp_path):
    policy, tasks = submitting
    folder = save_policy(tmp_path / "start", policy.model, policy.tokenizer)
    config = replace(CONFIG, learning_rate=1e36, warm_up=0)
    with pytest.raises(LeonardoError, match="step 1: not finite: "):
        train(config, folder, tasks, tmp_path / "run", 0, prepare(tasks))
    (record,) = records_of(tmp_path / "run")
    assert record["finite"] is False
    assert record["weights_digest"] == digest_of_weights(policy.model.state_dict())  # as they were
    assert not (tmp_path / "run" / "policy").exists()
