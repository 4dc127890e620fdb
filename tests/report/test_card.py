"""The model card: written from records, refused where these do not hold together, and the folder still loads."""

import json
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from leonardo import evidence
from leonardo.engine.desk.config import PolicyShape
from leonardo.engine.desk.policy import make_model, make_tokenizer, save_policy
from leonardo.engine.desk.update import digest_of_weights
from leonardo.errors import InputError
from leonardo.evaluation import EvaluationRecord, RunFacts, TaskResult
from leonardo.report.card import write_card
from leonardo.rollout.prompts import BASH_TOOL

SHAPE = PolicyShape(hidden_size=32, intermediate_size=32, heads=1, linear_heads=1, linear_head_dim=16)
PINS = {"config": "c0ffee", "seed": 1}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of runs with one that has a checkpoint, an evaluation of it and one of other weights."""
    run = tmp_path / "runs" / "study-seed1"
    tokenizer = make_tokenizer(["Solve it. ls -l /data"], 600)
    model = make_model(SHAPE, tokenizer, seed=1)
    save_policy(run / "model" / "policy", model, tokenizer)
    RunFacts(
        name="study", stage="study", site="desk", pins=PINS, limits=["Anything about large models."],
        configuration={"corpus": {"train": 3}}, assets={"prepared states": 3},
    ).write(run / "run.json")  # fmt: skip
    for name, weights, passed in (("mine", digest_of_weights(model.state_dict()), 1), ("other", "0" * 64, 0)):
        tasks = [TaskResult(task_id=f"t{number}", family="f", attempts=[passed], seeds=[1]) for number in range(4)]
        EvaluationRecord(
            model=name, weights=weights, pins={"driver": "d"}, tasks=tasks, pass_rate=float(passed),
            pass_rate_ci=(0.5, 1.0), infrastructure_failures=0, seconds=1.0,
        ).write(run / f"evaluation-{name}.json")  # fmt: skip
    ledger = tmp_path / "runs" / evidence.LEDGER
    evidence.append(ledger, evidence.Evidence(name="other", verdict="fail", pins={"seed": 2}))
    evidence.append(ledger, evidence.Evidence(name="study", verdict="pass", pins=PINS, says="study passes."))
    return tmp_path / "runs"


def test_it_says_what_the_records_say(runs: Path) -> None:
    checkpoint = runs / "study-seed1/model/policy"
    text = write_card(checkpoint, runs / evidence.LEDGER).read_text()
    _, front, body = text.split("---\n", 2)
    data = yaml.safe_load(front)
    assert data["library_name"] == "transformers"
    (result,) = data["model-index"][0]["results"]
    assert result["metrics"][0]["value"] == 1.0
    assert "study-seed1/model/policy" in body and "Qwen3_5ForCausalLM" in body and "`qwen3-xml`" in body
    assert "| mine | 4 | 100.0 % | 50.0 % to 100.0 % | 0 |" in body
    assert "| other |" not in body, "an evaluation of other weights says nothing of these"
    assert "`study`" in body and "**pass**. study passes." in body and "**fail**" not in body
    assert "Anything about large models." in body and "c0ffee" in body
    assert str(runs) not in text


def test_weights_that_nothing_measured_are_said_to_be_so(runs: Path) -> None:
    (runs / "study-seed1/evaluation-mine.json").unlink()
    text = write_card(runs / "study-seed1/model/policy", runs / evidence.LEDGER).read_text()
    assert "Nothing: no evaluation of exactly these weights" in text


def test_an_edited_ledger_is_refused(runs: Path) -> None:
    ledger = runs / evidence.LEDGER
    ledger.write_text(ledger.read_text().replace('"fail"', '"pass"'))
    with pytest.raises(InputError):
        write_card(runs / "study-seed1/model/policy", ledger)


def test_a_run_that_is_not_in_the_ledger_is_refused(runs: Path) -> None:
    facts = runs / "study-seed1/run.json"
    facts.write_text(json.dumps(json.loads(facts.read_text()) | {"pins": {"seed": 3}}))
    with pytest.raises(InputError, match="has no entry of the run study-seed1"):
        write_card(runs / "study-seed1/model/policy", runs / evidence.LEDGER)


def test_a_folder_outside_of_runs_is_refused(runs: Path, tmp_path: Path) -> None:
    (runs / "study-seed1/model/policy").rename(tmp_path / "policy")
    with pytest.raises(InputError, match="lies in no run"):
        write_card(tmp_path / "policy", runs / evidence.LEDGER)


def test_the_folder_loads_in_transformers_and_speaks(runs: Path) -> None:
    folder = runs / "study-seed1/model/policy"
    write_card(folder, runs / evidence.LEDGER)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "user", "content": "Solve it."}]
    prompt = tokenizer.apply_chat_template(
        messages, tools=[BASH_TOOL], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    said = model.generate(**prompt, max_new_tokens=3, do_sample=False)
    assert said.shape[1] == prompt["input_ids"].shape[1] + 3
    assert torch.isfinite(model(**prompt).logits).all()


@pytest.mark.parametrize("content", ["{}", "", "[1]", "{"])
def test_a_damaged_configuration_is_one_line(runs: Path, content: str) -> None:
    checkpoint = runs / "study-seed1/model/policy"
    (checkpoint / "config.json").write_text(content)
    with pytest.raises(InputError, match="holds no model that can be read") as caught:
        write_card(checkpoint, runs / evidence.LEDGER)
    assert "\n" not in str(caught.value)
