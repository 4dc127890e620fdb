"""What a study lacks is said before its tasks are prepared: all of it, in one line."""

import os
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from leonardo.cli import app
from leonardo.engine.desk.config import PolicyShape
from leonardo.engine.desk.policy import make_model, make_tokenizer, save_policy
from leonardo.errors import InputError
from leonardo.functions.checkers import PACKAGE_VARIABLE
from leonardo.jobs.space import require_room
from leonardo.settings import LAUNCH
from leonardo.site import Site
from leonardo.stages.transferfile import load_transfer
from leonardo.stages.transferready import require_room_for, require_startable

SHAPE = PolicyShape(hidden_size=32, intermediate_size=32, heads=1, linear_heads=1, linear_head_dim=16)


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    """A study of a desk policy and of two pretrained models."""
    models = ["desk"]
    for name in ("first", "second"):
        models.append(str(tmp_path / f"{name}.yaml"))
        Path(models[-1]).write_text(f"name: {name}\nstart: nobody/{name}\n")
    path = tmp_path / "transfer.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load((LAUNCH / "studies/transfer.yaml").read_text()) | {"models": models}))
    return path


def test_every_model_and_the_package_are_missed_before_anything_is_made(
    tmp_path: Path, stage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv(PACKAGE_VARIABLE, str(tmp_path / "no-bfcl"))
    places = [f"--{name}={tmp_path / name}" for name in ("out", "runs")]
    done = CliRunner(env={"LEONARDO_CACHE": str(tmp_path / "cache")}).invoke(
        app, ["transfer", "--stage", str(stage), *places]
    )
    assert done.exit_code == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    for words in ("nobody/first", "nobody/second", "bfcl-eval is not installed in", "hf download"):
        assert words in line
    assert f"no folder {tmp_path}/cache/models/first" in line
    assert not (tmp_path / "runs").exists() and not (tmp_path / "cache").exists()


def test_a_pretrained_model_is_read_and_its_checkpoints_need_room(tmp_path: Path, stage: Path) -> None:
    site = Site(name="test", cache=tmp_path / "cache", bases={})
    for name in ("first", "second"):
        tokenizer = make_tokenizer(["Solve it. ls -l /data"], 600)
        model = make_model(SHAPE, tokenizer, seed=1)
        save_policy(tmp_path / "cache/models" / name, model, tokenizer)
    study = load_transfer(stage)
    try:
        parameters = require_startable(study, site)
    except InputError as error:
        pytest.skip(str(error))  # no package here
    assert parameters[study.models[1]] == sum(weight.numel() for weight in model.parameters())
    require_room_for(study, parameters, [tmp_path / "runs/x"], site)
    with pytest.raises(InputError, match="left by the file system, and the study transfer needs"):
        require_room_for(study, parameters | {study.models[2]: 10**15}, [tmp_path / "runs/x"], site)
    (tmp_path / "cache/models/second/model.safetensors").unlink()
    with pytest.raises(InputError, match=r"the model in .* is not whole: it lacks weights"):
        require_startable(study, site)


def test_folders_of_one_file_system_share_what_is_left(tmp_path: Path) -> None:
    status = os.statvfs(tmp_path)
    most = 0.7 * status.f_bavail * status.f_frsize
    require_room({tmp_path / "a/b": most}, "it")
    with pytest.raises(InputError, match="MB left by the file system, and it needs"):
        require_room({tmp_path / "a/b": most, tmp_path / "c": most}, "it")
