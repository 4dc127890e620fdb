"""What is carried arrives as it was, or is named."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from leonardo.assets.store import AssetStore
from leonardo.errors import InputError
from leonardo.jobs import carry
from leonardo.jobs.offline import model_findings
from leonardo.rollout.episodes import EpisodeSettings
from leonardo.sandbox.driver import Driver
from leonardo.stages.carry import bundle_command, unbundle_command
from leonardo.stages.dataset import write_data
from leonardo.tasks.desk import generate, write_rows
from leonardo.tasks.rows import read_tasks


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle with a model and two wheels."""
    model = tmp_path / "model"
    model.mkdir()
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (model / name).write_text(name)
    (tmp_path / "wheels").mkdir()
    for name in ("a-1-py3-none-any.whl", "b-2-py3-none-any.whl"):
        (tmp_path / "wheels" / name).write_text(name)
    target = tmp_path / "bundle"
    assert carry.add(target, model, "models/small") == 3
    assert carry.add(target, tmp_path / "wheels", "wheels") == 2
    carry.seal(target, lambda words: None)
    return target


def test_arrives(bundle: Path, tmp_path: Path) -> None:
    """All of it, and the second time nothing is new."""
    files = carry.verify(bundle)
    shared = tmp_path / "shared"
    assert carry.place(bundle, shared, files, lambda words: None) == 5
    assert list(model_findings(shared / "models/small", "small", "")) == []
    (shared / "wheels/b-2-py3-none-any.whl").write_text("cut")
    assert carry.place(bundle, shared, files, lambda words: None) == 1


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: path.write_text("model.safetensorx"), "models/small/model.safetensors is damaged"),
        (lambda path: path.unlink(), "models/small/model.safetensors is missing"),
    ],
)
def test_damage_is_named(bundle: Path, damage: Callable[[Path], object], words: str) -> None:
    """Before anything is placed."""
    damage(bundle / "models/small/model.safetensors")
    with pytest.raises(InputError, match=words):
        carry.verify(bundle)


def test_no_bundle(tmp_path: Path) -> None:
    """A folder that is none, and one that would write elsewhere."""
    with pytest.raises(InputError, match="is no bundle"):
        carry.verify(tmp_path)
    (tmp_path / "contents.json").write_text(json.dumps({"../x": {"size": 1, "sha256": ""}}))
    with pytest.raises(InputError, match="would lie outside"):
        carry.verify(tmp_path)


def test_rows_to_a_data_set(
    store: AssetStore, driver: Driver, tmp_path: Path, tiny_root_archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are built here are carried there, and become the data set that upstream's trainer reads."""
    monkeypatch.delenv("LEONARDO_CACHE", raising=False)
    site = """
name: {name}
cache: {place}/cache-{name}
bases:
  ubuntu:22.04:
    {{registry: false, substitute: {{kind: archive, path: {archive}, reason: a test}}}}
cluster:
  pools: {{nodes: {{partition: test, cores: 1, memory: 1, tmp_size: 1}}}}
  qualities: [{{most_minutes: 60, most_nodes: 1}}]
  roots: {{shared: {place}/shared, scratch: {place}/shared}}
"""
    here, there = tmp_path / "here.yaml", tmp_path / "there.yaml"
    for path in (here, there):
        path.write_text(site.format(name=path.stem, place=tmp_path, archive=tiny_root_archive))
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, generate("train", 2, 1))
    from leonardo.site import load_site

    settings = load_site(here)
    built = AssetStore(settings.cache / "assets", driver, settings)
    entries = built.build(read_tasks(rows))
    built.close()
    bundle_command(tmp_path / "bundle", rows=rows, upstream=tmp_path / "none", site=str(here))
    unbundle_command(tmp_path / "bundle", site=str(there), upstream=tmp_path / "none")
    carried = read_tasks(tmp_path / "shared/data/rows.jsonl")
    out = tmp_path / "out/data.json"
    write_data(carried, tmp_path / "shared/data/small", out, EpisodeSettings(), site=there, console=Console(quiet=True))
    written = [json.loads(line) for line in (tmp_path / "shared/data/small/dataset/train.jsonl").open()]
    images = [row["env_config"]["env_configs"][0]["image"] for row in written]
    assert images == [f"prepared://{entry.prepared}" for entry in entries]
