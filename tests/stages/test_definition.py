import pytest

from leonardo.errors import InputError
from leonardo.settings import LAUNCH
from leonardo.stages.definition import load_model, load_stage


def test_the_shipped_files_are_whole():
    for path in (LAUNCH / "stages").glob("*.yaml"):
        stage = load_stage(path)
        assert stage.criteria, path
        load_model(stage.model)


def test_settings_reach_the_engines():
    stage = load_stage("smoke")
    assert stage.learner().steps == 4
    assert stage.corpus_sizes().train == 48
    assert stage.upstream["loss_fn"] == "dppo"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("nonsense: 1", "nonsense: unknown setting"),
        ("corpus: {trian: 3}", "corpus has no setting trian"),
        ("desk: {steps: many}", "desk.steps: 'many' is no int"),
        ("criteria: [{figure: x, reason: y}]", "criteria.0: .*give least, most or equals"),
        ("criteria: [{figure: x, least: 1}]", "criteria.0.reason: Field required"),
        ("name: [", "is not YAML"),
    ],
)
def test_a_wrong_setting_is_named_with_its_file(tmp_path, change, message):
    path = tmp_path / "stage.yaml"
    path.write_text(f"name: x\nshows: y\ncriteria: []\n{change}\n" if "name: [" not in change else change)
    if change.startswith("criteria"):
        path.write_text(f"name: x\nshows: y\n{change}\n")
    with pytest.raises(InputError, match=message):
        load_stage(path)


def test_an_unknown_stage_lists_the_known_ones():
    with pytest.raises(InputError, match=r"No stage moon\. Known stages: calibrate, .*smoke"):
        load_stage("moon")
