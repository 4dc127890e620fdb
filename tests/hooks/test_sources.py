"""What is on disk is taken from there; what is missing is named."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError

from leonardo.errors import InputError
from leonardo.hooks import sources
from leonardo.jobs.offline import model_findings

REVISION = "0" * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and a working folder beside it."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "cache"


@pytest.fixture
def off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache, on a machine where the hub may not be asked."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return cache


def put(cache: Path, name: str, files: dict[str, str], kind: str = "models") -> Path:
    """A snapshot in the hub's cache."""
    repository = cache / f"{kind}--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(REVISION)
    (repository / "blobs").mkdir()
    snapshot = repository / "snapshots" / REVISION
    snapshot.mkdir(parents=True)
    for file, text in files.items():
        (snapshot / file).write_text(text)
    return snapshot


MODEL = {"config.json": "{}", "model.safetensors": ""}
SHARDED = {
    "config.json": "{}",
    "model.safetensors.index.json": json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}),
    "1.safetensors": "",
}


def test_folder_is_its_own_place(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file, text in MODEL.items():
        (folder / file).write_text(text)
    assert sources.find(str(folder)) == folder
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="not whole: it lacks weights"):
        sources.find(str(folder))
    assert sources.find(str(folder), kind="tokenizer") == folder


@pytest.mark.parametrize("name", ["/no/such/model", "./model", "a/b/c"])
def test_folder_that_is_not_there(cache: Path, name: str) -> None:
    with pytest.raises(InputError, match="no such folder"):
        sources.find(name)


def test_name_that_is_none(cache: Path) -> None:
    with pytest.raises(InputError, match="neither a folder nor a name of the hub"):
        sources.find("two--dashes")


def test_whole_snapshot_is_taken_online_and_offline(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = put(cache, "org/model", MODEL)
    assert sources.find("org/model") == snapshot
    assert sources.find("org/model", REVISION) == snapshot
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert sources.find("org/model") == snapshot


def test_hub_is_asked_for_the_rest_of_a_snapshot(cache: Path) -> None:
    put(cache, "org/model", SHARDED)
    assert sources.find("org/model") is None
    snapshot = put(cache, "org/other", MODEL)
    (snapshot.parent.parent / "blobs" / "x.incomplete").write_text("")
    assert sources.find("org/other") is None


def test_missing_offline_is_named_with_the_places(off: Path) -> None:
    with pytest.raises(InputError) as caught:
        sources.find("org/model", "v2")
    text = str(caught.value)
    assert "org/model" in text and str(off) in text and str(Path.cwd()) in text and "revision v2" in text
    assert "hf download org/model" in text


def test_part_offline_is_named(off: Path) -> None:
    put(off, "org/model", SHARDED)
    with pytest.raises(InputError, match=r"lacks 2\.safetensors"):
        sources.find("org/model")


@pytest.mark.parametrize("text", ["", "[]", '{"weight_map": ["1.safetensors"]}', '{"weight_map": {"a": 1}}'])
def test_a_damaged_index_is_named(off: Path, text: str) -> None:
    snapshot = put(off, "org/model", SHARDED | {"model.safetensors.index.json": text})
    with pytest.raises(InputError, match=r"index\.json is (no index of weights|not JSON)"):
        sources.find("org/model")
    (snapshot / "tokenizer.json").touch()
    (finding,) = model_findings(snapshot, "small")
    assert finding.id == "offline.model" and "index.json is no" in finding.what


def test_names_in_settings_become_folders(off: Path) -> None:
    model, tokenizer = put(off, "org/model", MODEL), put(off, "org/tokenizer", {"tokenizer.json": "{}"})
    args = SimpleNamespace(value_model_name_or_path=None)
    model_config = SimpleNamespace(model_name_or_path="org/model", model_revision=None)
    tokenizer_config = SimpleNamespace(tokenizer_name_or_path="org/tokenizer", tokenizer_revision=REVISION)
    sources.take_from_disk(args, model_config, tokenizer_config)
    assert model_config.model_name_or_path == str(model)
    assert tokenizer_config.tokenizer_name_or_path == str(tokenizer)
    assert args.value_model_name_or_path is None


def test_name_stays_where_the_hub_is_to_be_asked(cache: Path) -> None:
    config = SimpleNamespace(model_name_or_path="org/model", model_revision=None)
    sources.take_from_disk(config)
    assert config.model_name_or_path == "org/model"


def download(repo_id: str, **options: Any) -> str:
    """Stands for the hub: has everything but what is called after nothing."""
    if "nothing" in repo_id:
        raise LocalEntryNotFoundError("no network")
    return f"downloaded {repo_id} {options}"


def test_download_only_of_what_is_not_there(cache: Path) -> None:
    get = sources.local_first(download)
    snapshot = put(cache, "org/data", {"task-data.tar.gz": ""}, "datasets")
    assert get("org/data", repo_type="dataset") == str(snapshot)
    assert get("org/model", revision="v1") == "downloaded org/model {'revision': 'v1'}"
    with pytest.raises(InputError, match="the hub cannot be reached"):
        get("org/nothing")


def rows(path: Path, *values: int) -> Path:
    path.write_text("".join(json.dumps({"value": value}) + "\n" for value in values))
    return path


@pytest.fixture
def load(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The library's loader as upstream gets it; what it makes lies in the scratch folder."""
    import datasets

    monkeypatch.setenv(sources.SCRATCH, str(tmp_path / "scratch"))
    return sources.data_local_first(datasets.load_dataset)


def test_file_of_rows(load: Any, tmp_path: Path) -> None:
    path = rows(tmp_path / "rows.jsonl", 1, 2)
    assert load(str(path), split="train")["value"][:] == [1, 2]
    assert load(str(path), None, split="test", revision="main", num_proc=1)["value"][:] == [1, 2]
    assert load("json", data_files=str(path), split="train")["value"][:] == [1, 2]
    assert (tmp_path / "scratch" / "datasets").is_dir()


def test_file_of_unknown_kind(load: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"rows\.txt has no known kind"):
        load(str(rows(tmp_path / "rows.txt", 1)))


def test_folders_of_rows_and_of_a_saved_data_set(load: Any, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rows(tmp_path / "data" / "train.jsonl", 3)
    data = load(str(tmp_path / "data"), split="train")
    assert data["value"][:] == [3]
    data.save_to_disk(tmp_path / "saved")
    assert load(str(tmp_path / "saved"), split="train")["value"][:] == [3]


def test_data_set_that_is_not_there(load: Any) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        load("/no/such/data")
    with pytest.raises(InputError, match="no such file or folder"):
        load("rows.jsonl")


def test_named_data_set_offline(off: Path) -> None:
    def unreachable(path: str, **options: Any) -> Any:
        raise ConnectionError("Couldn't reach the Hub")

    with pytest.raises(InputError, match=r"the data set org/data is not on this machine.*hf download --repo-type"):
        sources.data_local_first(unreachable)("org/data", split="train")


def test_answer_of_the_hub_is_passed_on(cache: Path) -> None:
    def refused(path: str, **options: Any) -> Any:
        raise FileNotFoundError("the hub has no such data set")

    with pytest.raises(FileNotFoundError, match="the hub has no such"):
        sources.data_local_first(refused)("org/data")


def test_digest_changes_with_the_content(tmp_path: Path) -> None:
    path = rows(tmp_path / "rows.jsonl", 1)
    file, folder = sources.content_digest(str(path)), sources.content_digest(str(tmp_path))
    rows(path, 2)
    assert file != sources.content_digest(str(path)) and folder != sources.content_digest(str(tmp_path))
    assert sources.content_digest("org/data") is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model.safetensors.index.json": '{"weight_map": {}}', "1.safetensors": None}, "lacks weights"),
        ({"model.safetensors.index.json": None, "1.safetensors": None}, "lacks weights"),
        ({"config.json": "[]"}, "describes no model"),
        ({"config.json": '{"model_type": null}'}, "describes no model"),
        ({"config.json": "{"}, "is not JSON"),
        ({"config.json": None}, "lacks config.json"),
        ({}, "lacks 2.safetensors"),
    ],
)
def test_check_and_trainer_say_the_same_of_a_models_folder(
    cache: Path, tmp_path: Path, change: dict[str, str | None], words: str
) -> None:
    for name, text in ({"tokenizer.json": "", **SHARDED} | change).items():
        if text is not None:
            (tmp_path / name).write_text(text)
    (finding,) = model_findings(tmp_path, "small", "a/small")
    assert finding.id == "offline.model" and words in finding.what
    with pytest.raises(InputError, match=words):
        sources.find(str(tmp_path))


@pytest.mark.parametrize("text", ["[]", "5", '"x"', '{"model_type": null}'])
def test_a_configuration_of_no_model_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match="describes no model"):
        sources.name_with_family(str(tmp_path))


@pytest.mark.parametrize(
    ("config", "has_prefix"),
    [
        ({"model_type": "qwen3_5", "text_config": {}}, True),
        ({"model_type": "qwen3_5_text"}, False),
        ({"model_type": "qwen3"}, False),
        (None, False),
    ],
)
def test_family_is_read_off_the_configuration(tmp_path: Path, config: dict[str, Any] | None, has_prefix: bool) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert sources.name_with_family(str(tmp_path)).startswith(str(tmp_path))
    assert ("qwen3.5" in sources.name_with_family(str(tmp_path))) == has_prefix
