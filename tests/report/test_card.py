"""The model card: written from records, refused where these do not hold together, and the folder still loads."""

import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from leonardo import evidence
from leonardo.engine.desk.config import LearnerConfig, PolicyShape, WarmStartConfig, settings_of
from leonardo.engine.desk.policy import make_model, make_tokenizer, save_policy
from leonardo.engine.desk.update import digest_of_weights
from leonardo.errors import InputError
from leonardo.evaluation import EvaluationRecord, RunFacts, Substitution, TaskResult, compare
from leonardo.files import write_json
from leonardo.report.card import write_card
from leonardo.report.cardrecords import Training, WarmStart, licenses_of, read_left
from leonardo.rollout.prompts import BASH_TOOL
from leonardo.settings import LAUNCH
from leonardo.stages.transferfile import limits_of, load_transfer
from leonardo.stages.transfermatrix import Effect
from leonardo.stages.transferseeds import OverSeeds, figures_of

SHAPE = PolicyShape(hidden_size=32, intermediate_size=32, heads=1, linear_heads=1, linear_head_dim=16)
PINS = {"config": "c0ffee", "seed": 1, "bases": {"image:1": "ba5e"}}
BASE = "b" * 64
STEPS = LAUNCH.parent / "docs/evidence/cpu-transfer/desk/functions/steps.jsonl"


def evaluation(name: str, weights: str, passing: int, **pins: object) -> EvaluationRecord:
    """Of 24 tasks of two kinds, of which the first pass."""
    tasks = [
        TaskResult(task_id=f"t{number}", family="fg"[number % 2], attempts=[int(number < passing)], seeds=[1])
        for number in range(24)
    ]
    sampling = {"temperature": 0.7, "top_p": 0.9, "max_turn_tokens": 5}
    return EvaluationRecord(
        model=name, weights=weights, pins={"driver": "d", "sampling": sampling, **pins}, tasks=tasks,
        pass_rate=passing / 24, pass_rate_ci=(0.25, 0.75), infrastructure_failures=0, seconds=1.0,
    )  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs with one that trained a checkpoint and evaluated it, its base, and other weights.

    Its base model lies in the site's cache, with a card.
    """
    monkeypatch.setenv("LEONARDO_CACHE", str(tmp_path / "cache"))
    run = tmp_path / "runs" / "study-seed1"
    tokenizer = make_tokenizer(["Solve it. ls -l /data"], 600)
    model = make_model(SHAPE, tokenizer, seed=1)
    save_policy(run / "model" / "policy", model, tokenizer)
    published = save_policy(tmp_path / "cache/models/published", model, tokenizer)
    (published / "README.md").write_text("---\nlicense: apache-2.0\n---\n# published\n")
    model_file = tmp_path / "model.yaml"
    model_file.write_text("name: model\nstart: somebody/published\n")
    (run / "model/steps.jsonl").write_bytes(STEPS.read_bytes())
    described = {"learner": settings_of(LearnerConfig()), "base": BASE, "tasks": ["a", "b", "c"]}
    write_json(run / "model/config.json", described | {"policy": str(tmp_path)})
    warm_start = {"config": settings_of(WarmStartConfig()), "demonstrations": [192, 6600], "losses": [1.5]}
    write_json(tmp_path / "warm-start.json", warm_start)
    RunFacts(
        name="Study, seed 1", stage="study", site="desk", pins=PINS, limits=["Anything about large models."],
        configuration={"model": str(model_file), "corpus": {"train": 3}}, assets={"prepared states": 3},
    ).write(run / "run.json")  # fmt: skip
    mine = digest_of_weights(model.state_dict())
    for record in (
        evaluation("base", BASE, 6), evaluation("trained", mine, 12), evaluation("other", "0" * 64, 24),
        evaluation("apart", mine, 18, tasks="others"),
    ):  # fmt: skip
        record.write(run / f"evaluation-{record.model}.json")
    ledger = tmp_path / "runs" / evidence.LEDGER
    evidence.append(ledger, evidence.Evidence(name="other", verdict="fail", pins={"seed": 2}))
    below = evidence.append(ledger, evidence.Evidence(name="smoke", verdict="pass", says="smoke passes."))
    for _ in range(2):
        entry = evidence.Evidence(name="study", verdict="pass", pins=PINS, says="study passes.", builds_on=below.digest)
        evidence.append(ledger, entry)
    return tmp_path / "runs"


def test_it_says_what_the_records_say(runs: Path) -> None:
    checkpoint = runs / "study-seed1/model/policy"
    (path,) = write_card(checkpoint, runs / evidence.LEDGER)
    _, front, body = path.read_text().split("---\n", 2)
    data = yaml.safe_load(front)
    assert (data["library_name"], data["license"], data["base_model"]) == (
        "transformers", "apache-2.0", "somebody/published",
    )  # fmt: skip
    measured = {each["dataset"]["name"]: each["metrics"][0]["value"] for each in data["model-index"][0]["results"]}
    assert measured == {"held-out tasks of study": 0.5, "apart of study": 0.75}
    for words in (
        "# model (Study, seed 1)", "600 steps on 192 demonstrations of whole", "40 % are right",
        "Qwen3_5ForCausalLM", "`qwen3-xml`", "on 3 tasks",
        "| trained on | 3 tasks `", "the base model's: apache-2.0",
        "- 1,280 training rollouts ran; 0 failed", "| learning rate (AdamW) | 0.002 |", "| prepared states | 3 |",
        "| settings of the stage | `c0ffee` |", "| bases.image:1 | `ba5e` |", "- Anything about large models.",
        "- `study`: **pass**", "entry 4 (the last of 2 that say so)", "- `smoke`: **pass**",
    ):  # fmt: skip
        assert words in body, words
    assert re.search(r"\| held-out tasks \| 24 \| 25.0 % \(.+\) \| 50.0 % \(.+\) \| \+25.0 \(\+.+\) \| 0 \|", body)
    assert "| apart | 24 | - | 75.0 % (25.0 % to 75.0 %) | - | 0 |" in body, "its base was not evaluated so"
    assert re.search(r"\| f \| 12 \| 25.0 % \| 50.0 % \| \+25.0 ", body)
    assert "**fail**" not in body, "an entry with other pins says nothing of it"
    prose = body.partition("```")[0]
    assert not re.search(r"[{}\[]'|None|True|False", prose), "nothing stands there as a program writes it"
    assert str(runs) not in path.read_text() and "\n\n\n" not in body


def test_a_control_and_what_is_not_known_are_said(runs: Path) -> None:
    run = runs / "study-seed1"
    steps = run / "model/steps.jsonl"
    steps.write_text(steps.read_text().replace('"injected": []', '"injected": ["shuffled_rewards=True"]'))
    (runs.parent / "cache/models/published/README.md").unlink()
    (path,) = write_card(run / "model/policy", runs / evidence.LEDGER)
    assert "**A control: shuffled_rewards=True was injected" in path.read_text()
    assert "license: " not in path.read_text() and "not known here: look up the base model's" in path.read_text()


def began_with_its_own(runs: Path, place: str = "model") -> Path:
    """The checkpoint, now at ``place``, where training moved nothing: what it began with has its digest."""
    run = runs / "study-seed1"
    if place != "model":
        (run / "model").rename(run / "here")
        (run / place).parent.mkdir(parents=True)
        (run / "here").rename(run / place)
    mine = EvaluationRecord.model_validate_json((run / "evaluation-trained.json").read_bytes()).weights
    described = json.loads((run / place / "config.json").read_text())
    write_json(run / place / "config.json", described | {"base": mine})
    evaluation("base", mine, 12).write(run / "evaluation-base.json")
    return run / place / "policy"


def test_that_training_moved_nothing_is_said_at_the_top(runs: Path) -> None:
    text = write_card(began_with_its_own(runs), runs / evidence.LEDGER)[0].read_text()
    assert "**The weights are those that training began with**" in text.partition("## Results")[0]
    (row,) = re.findall(r"^\| held-out tasks \| 24 \| .+", text, re.MULTILINE)
    assert row.count("50.0 % (") == 2 and "+0.0" in row, "its base's evaluation is the base, and not its own"


def test_cells_of_others_with_the_same_weights_are_not_its_own(runs: Path) -> None:
    """As in a study whose trainings moved nothing."""
    checkpoint = began_with_its_own(runs, "model/functions")
    run = runs / "study-seed1"
    mine = digest_of_weights(AutoModelForCausalLM.from_pretrained(checkpoint).state_dict())
    for path in run.glob("evaluation-*.json"):
        path.unlink()
    for start in ("base", "functions", "terminal"):
        for on in ("functions", "terminal"):
            evaluation(f"model-{start}-{on}", mine, 12, on=on).write(run / f"evaluation-model-{start}-{on}.json")
    text = write_card(checkpoint, runs / evidence.LEDGER)[0].read_text()
    (named,) = yaml.safe_load(text.split("---\n")[1])["model-index"]
    assert [each["dataset"]["name"] for each in named["results"]] == ["functions of study", "terminal of study"]
    rows = re.findall(r"^\| (\S+) \| 24 \| 50.0 % \(.+\) \| 50.0 % \(.+\) \| \+0.0 ", text, re.MULTILINE)
    assert rows == ["functions", "terminal"]


def test_luck_is_told_by_the_study_over_seeds_or_not_at_all(runs: Path) -> None:
    checkpoint = began_with_its_own(runs, "model/functions")
    run, ledger = runs / "study-seed1", runs / evidence.LEDGER
    facts = RunFacts.model_validate_json((run / "run.json").read_text())
    weights = EvaluationRecord.model_validate_json((run / "evaluation-trained.json").read_bytes()).weights
    # what the study itself says in a run that is one of several
    limits = limits_of(load_transfer("transfer").model_copy(update={"seeds": (1, 2, 3)}))
    facts.model_copy(update={"limits": list(limits)}).write(run / "run.json")
    evaluation("model-functions-terminal", weights, 12).write(run / "evaluation-model-functions-terminal.json")
    comparison = run / "comparison-model-functions-terminal.json"
    comparison.write_text("{}")
    text = write_card(checkpoint, ledger)[0].read_text()
    assert "one training run's luck: one seed says nothing about it." in text and "spread" not in text
    compared = [compare(evaluation("a", "", 6), evaluation("b", "", passing)) for passing in (12, 18)]
    effects = tuple(Effect("model", "functions", "terminal", each, "none shown") for each in compared)
    figures = {"effects": figures_of([OverSeeds("model", "functions", "terminal", effects)])}
    entry = evidence.Evidence(
        name="study-seeds", verdict="pass", figures=figures,
        records=evidence.record_files(runs, [comparison]), says="study passes with the seeds 1, 2, 3 of 3.",
    )  # fmt: skip
    evidence.append(ledger, entry)
    text = write_card(checkpoint, ledger)[0].read_text()
    assert "(`study-seeds`, entry 5 of the ledger)" in text and "- `study-seeds`: **pass**" in text
    assert "- terminal: mean +37.5, standard deviation 17.7, of 2 seeds." in text
    assert "luck, but by a spread over 3 seeds." in text
    comparison.write_text("[]")  # the run is another by now
    assert "study-seeds" not in write_card(checkpoint, ledger)[0].read_text()


def test_what_a_hub_shows_is_said_in_words(runs: Path) -> None:
    run = runs / "study-seed1"
    (runs.parent / "model.yaml").write_text("name: model\nstart: desk\n")
    facts = RunFacts.model_validate_json((run / "run.json").read_text())
    configuration = facts.configuration | {"functions": {"right": 0.25}}
    facts.model_copy(update={"configuration": configuration}).write(run / "run.json")
    text = write_card(run / "model/policy", runs / evidence.LEDGER)[0].read_text()
    header = yaml.safe_load(text.split("---\n")[1])
    assert header["model-index"][0]["name"] == "model (Study, seed 1)" and "license" not in header
    assert "no license is given with it. Ask who made it before you use it" in text
    assert "of those of the terminal 40 % are right, of those of function calling 25 %, the others mistaken" in text
    assert "--tool-call-parser qwen3_xml`" in text


@pytest.mark.parametrize("place", [".", "model/policy", "model/policy/served", "link/served"])
def test_what_is_served_is_never_written_over_the_checkpoint_or_into_it(runs: Path, place: str) -> None:
    run = runs / "study-seed1"
    checkpoint = run / "model/policy"
    if place == ".":
        checkpoint = checkpoint.rename(run / "start-qwen3.5")
    (run / "link").symlink_to(checkpoint)
    with pytest.raises(InputError, match="the checkpoint lies there") as caught:
        write_card(checkpoint, runs / evidence.LEDGER, run / place)
    assert "\n" not in str(caught.value) and (checkpoint / "model.safetensors").is_file()


def test_what_training_began_with_is_no_training(runs: Path) -> None:
    for name in ("steps.jsonl", "config.json"):
        (runs / "study-seed1/model" / name).unlink()
    text = write_card(runs / "study-seed1/model/policy", runs / evidence.LEDGER)[0].read_text()
    assert "It was not trained by reinforcement" in text and "| held-out tasks | 24 | - | 50.0 %" in text


def test_weights_that_nothing_measured_are_said_to_be_so(runs: Path) -> None:
    for name in ("trained", "apart"):
        (runs / f"study-seed1/evaluation-{name}.json").unlink()
    text = write_card(runs / "study-seed1/model/policy", runs / evidence.LEDGER)[0].read_text()
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


def test_the_folder_loads_in_transformers_and_speaks(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the lines that the card gives."""
    folder = runs / "study-seed1/model/policy"
    (path,) = write_card(folder, runs / evidence.LEDGER)
    (code,) = re.findall(r"```python\n(.+?)```", path.read_text(), re.DOTALL)
    assert "temperature=0.7, top_p=0.9" in code and json.dumps(BASH_TOOL["function"]["name"]) in code
    monkeypatch.chdir(folder)
    found: dict = {}
    exec(code, found)
    assert found["said"].shape[1] <= found["prompt"]["input_ids"].shape[1] + 5
    assert capsys.readouterr().out.strip()
    assert torch.isfinite(AutoModelForCausalLM.from_pretrained(folder)(**found["prompt"]).logits).all()
    assert AutoTokenizer.from_pretrained(folder).chat_template


def test_the_served_form_has_a_card_that_says_how(runs: Path, tmp_path: Path) -> None:
    (runs.parent / "cache/models/published/README.md").write_text("---\nlicense: [mit, gemma]\n---\n")
    _, served = write_card(runs / "study-seed1/model/policy", runs / evidence.LEDGER, tmp_path / "served")
    (code,) = re.findall(r"```python\n(.+?)```", served.read_text(), re.DOTALL)
    compile(code, "card", "exec")
    assert "language_model_only=True" in code and "max_tokens=5" in code
    assert (served.parent / "model.safetensors").is_file()
    assert yaml.safe_load(served.read_text().split("---\n")[1])["license"] == ["mit", "gemma"]
    assert "the base model's: mit, gemma" in served.read_text()


@pytest.mark.parametrize("content", ["{}", "", "[1]", "{"])
def test_a_damaged_configuration_is_one_line(runs: Path, content: str) -> None:
    checkpoint = runs / "study-seed1/model/policy"
    (checkpoint / "config.json").write_text(content)
    with pytest.raises(InputError, match="holds no model that can be read") as caught:
        write_card(checkpoint, runs / evidence.LEDGER)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("header", "licenses"),
    [
        ("license: mit", ("mit",)),
        ("license: [a, ' b ', 5, '']", ("a", "b")),
        ("license:", ()),
        ("license: {a: b}", ()),
        ("license: [", ()),
        ("license: !!python/object/apply:os.getcwd []", ()),
        ("license: " + "[" * 5000, ()),
        ("- license", ()),
    ],
)
def test_the_license_is_told_where_the_header_names_it(tmp_path: Path, header: str, licenses: tuple[str, ...]) -> None:
    (tmp_path / "README.md").write_text(f"---\n{header}\n---\n# published\n")
    assert licenses_of(tmp_path / "README.md") == licenses


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Training, {"learner": "fast"}),
        (Training, {"learner": ["fast"]}),
        (Training, {"tasks": 5}),
        (Training, {"tasks": None}),
        (Training, {"policy": 5}),
        (WarmStart, {"config": None}),
        (WarmStart, {"demonstrations": None}),
        (WarmStart, {"demonstrations": [1]}),
        (WarmStart, {"config": {"steps": 5, "right": None}}),
        (WarmStart, {"config": {"steps": 5, "right": "0.4"}}),
    ],
)
def test_what_a_training_left_is_held_to_its_form(
    tmp_path: Path, kind: type[Training | WarmStart], change: dict[str, object]
) -> None:
    whole = {"learner": {}, "tasks": [], "config": {"steps": 5, "right": 0.4}, "demonstrations": [3, 4], "more": 1}
    write_json(tmp_path / "left.json", whole)
    assert read_left(tmp_path / "left.json", kind)
    write_json(tmp_path / "left.json", whole | change)
    with pytest.raises(InputError, match=r"left\.json: not a valid") as caught:
        read_left(tmp_path / "left.json", kind)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("model/config.json", {"learner": "fast"}),
        ("warm-start.json", {"config": {}}),
        ("evaluation-trained.json", {"tasks": []}),
        ("evaluation-trained.json", {"pins": {"sampling": {"temperature": "1.0) or exit('evil'"}}}),
        ("evaluation-trained.json", {"pins": {"sampling": {"temperature": 10**400}}}),
        ("evaluation-trained.json", {"pins": {"top_p": 1, "limits.context_tokens": True}}),
    ],
)
def test_a_damaged_record_is_one_line_and_no_card(
    runs: Path, tmp_path: Path, file: str, change: dict[str, object]
) -> None:
    run = runs / "study-seed1"
    path = run / file if (run / file).is_file() else tmp_path / file
    write_json(path, json.loads(path.read_text()) | change)
    with pytest.raises(InputError, match=re.escape(str(path))) as caught:
        write_card(run / "model/policy", runs / evidence.LEDGER, tmp_path / "served")
    assert "\n" not in str(caught.value)
    assert not (run / "model/policy/README.md").exists() and not (tmp_path / "served").exists()


def test_what_records_say_stays_in_its_line_and_its_cell(runs: Path) -> None:
    """Texts with breaks of lines, marks of cells and of headings, in all that comes from outside."""
    run, evil = runs / "study-seed1", "# a | b\n\n# evil\r\u2028| <b>c"
    (runs.parent / "model.yaml").write_text(f"name: model\nstart: {json.dumps('./' + evil)}\n")
    facts = RunFacts.model_validate_json((run / "run.json").read_text())
    pins = {**PINS, "e|\n# vil": evil}
    facts.model_copy(
        update={
            "name": evil, "limits": [evil], "pins": pins, "assets": {evil: evil},
            "substitutions": [Substitution(asked=evil, used=evil)],
        }
    ).write(run / "run.json")  # fmt: skip
    evidence.append(runs / evidence.LEDGER, evidence.Evidence(name="study", verdict="pass", pins=pins, says=evil))
    (path,) = write_card(run / "model/policy", runs / evidence.LEDGER)
    body = path.read_text().split("---\n", 2)[2]
    prose = re.sub(r"```.+?```", "", body, flags=re.DOTALL).splitlines()
    headings = [line for line in prose if re.match(r"[-\s]*#", line)]
    assert [line[:6] for line in headings] == ["# mode", "## Res", "## Tra", "## Dat", "## Evi", "## Lim", "## Use"]
    assert not any("evil" in line and line.startswith(("|", "evil")) and line.count("|") != 3 for line in prose)
    assert "<b>" not in body and body.count("evil") >= 7
