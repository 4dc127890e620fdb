import pytest

from leonardo.errors import InputError
from leonardo.stages.definition import load_model, load_stage
from leonardo.stages.ladder import ladder


def test_the_shipped_files_are_whole():
    assert len(ladder()) >= 4
    for stage in ladder():
        assert stage.criteria, stage.name
        load_model(stage.model)


def test_settings_reach_the_engines():
    stage = load_stage("smoke")
    assert stage.learner().steps == 4
    assert stage.corpus_sizes().train == 96
    assert stage.upstream["loss_fn"] == "dppo"


def test_settings_within_settings_reach_the_learner(tmp_path):
    path = tmp_path / "control.yaml"
    path.write_text("name: x\nshows: y\ndesk: {steps: 3, faults: {failing_sandboxes: 0.2}}\ncriteria: []\n")
    learner = load_stage(path).learner()
    assert (learner.steps, learner.faults.failing_sandboxes, learner.faults.shuffled_rewards) == (3, 0.2, False)
    assert learner.faults.injected == ["failing_sandboxes=0.2"]


@pytest.mark.parametrize("name", [stage.name for stage in ladder()])
def test_no_stage_injects_a_fault(name):
    assert load_stage(name).learner().faults.injected == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("nonsense: 1", ":4: nonsense: unknown setting"),
        ("corpus: {trian: 3}", r":4: corpus\.trian: unknown setting\. Known: "),
        ("desk: {faults: {shuffled: true}}", r":4: desk\.faults\.shuffled: unknown setting"),
        ("desk: {faults: {failing_sandboxes: 20}}", "failing_sandboxes is 20"),
        ("desk: {divergence: js}", "divergence 'js' is unknown"),
        ("desk: {steps: many}", "desk.steps: 'many' is no int"),
        ("criteria: [{figure: x, reason: y}]", "criteria.0: .*give least, most or equals"),
        ("criteria: [{figure: x, least: 1}]", ":3: criteria.0.reason: Field required"),
        (
            "criteria:\n  - {figure: updatez, least: 1, reason: y}",
            r":4: criteria\.0\.figure: no figure updatez; there are upd",
        ),
        ("rows: r\ncriteria: [{figure: leftovers, most: 0, reason: y}]", ":4: criteria.*no figure leftovers"),
        ("corpus: {train: 3}\ncorpus: {train: 4}", ":5: corpus is there twice"),
        ("corpus: {train: 3, train: 4}", ":4: train is there twice"),
        ("corpus: [\n", ":6 is not YAML"),
        ("name: [", "is not YAML"),
        ("job: 3", ":4: job: keys are wanted. Examples are in launch/stages"),
        ("early_stop: {}", ":4: early_stop: a list is wanted"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(tmp_path, change, message):
    path = tmp_path / "stage.yaml"
    path.write_text(f"name: x\nshows: y\ncriteria: []\n{change}\n" if "name: [" not in change else change)
    if "criteria" in change:
        path.write_text(f"name: x\nshows: y\n{change}\n")
    with pytest.raises(InputError, match=message) as caught:
        load_stage(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_models_criterion_is_about_a_figure_of_a_run_or_of_a_job(tmp_path):
    path = tmp_path / "model.yaml"
    rules = [f"- {{figure: {name}, most: 0, reason: y}}" for name in ("leftovers", "nodez")]
    text = "\n".join(["name: x", "start: desk", "criteria:", *rules])
    path.write_text(text)
    with pytest.raises(InputError, match=r":5: criteria\.1\.figure: no figure nodez"):
        load_model(path)
    path.write_text(text.replace("nodez", "starts"))
    assert len(load_model(path).criteria) == 2


def test_an_unknown_stage_lists_the_known_ones():
    with pytest.raises(InputError, match=r"No stage moon\. Known stages: calibrate, .*smoke"):
        load_stage("moon")


def test_a_file_that_names_its_parts_again_and_again_is_refused_at_once(tmp_path):
    """Nine lines that stand for 9^9 values, and one that holds itself."""
    path = tmp_path / "stage.yaml"
    lines = [
        f"{name}: &{name} [{', '.join(9 * [before])}]"
        for before, name in zip(["x", *map("*{}".format, "abcdefgh")], "abcdefghi", strict=True)
    ]
    path.write_text("\n".join(["name: x", *lines, ""]))
    for text in (path.read_text(), "name: &a [*a, *a]\n"):
        path.write_text(text)
        with pytest.raises(InputError, match="holds more than 100000 values"):
            load_stage(path)


def test_a_part_may_be_named_again(tmp_path):
    path = tmp_path / "stage.yaml"
    path.write_text("name: x\nshows: y\nupstream: {a: &a [1, 2], b: *a}\ncriteria: []\n")
    assert load_stage(path).upstream == {"a": [1, 2], "b": [1, 2]}
