"""Models, tokenizers, data sets and task data that are on disk are taken from there; the hub is asked for the rest.

"On disk" is a folder or file of that name, or a whole snapshot in the hub's cache. Offline, what is missing is named,
with the places where it was looked for.
"""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leonardo.errors import InputError
from leonardo.files import read_json
from leonardo.hooks.paths import SCRATCH

_FILE_KINDS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}

_ON = {"1", "ON", "YES", "TRUE"}

_NAMES = (
    ("model_name_or_path", "model_revision", "model"),
    ("value_model_name_or_path", "", "model"),
    ("tokenizer_name_or_path", "tokenizer_revision", "tokenizer"),
)
"""Upstream's settings that name a model or tokenizer, those with its revision, and which of the two it is."""

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


def take_from_disk(*configs: Any) -> None:
    """Replace the names of models and tokenizers in upstream's settings by the folders that hold them.

    Raises:
        InputError: see :func:`find`.
    """
    for config in configs:
        for name, revision, kind in _NAMES:
            wanted = getattr(config, name, None)
            if wanted:
                found = find(wanted, getattr(config, revision, None), kind)
                setattr(config, name, str(found or wanted))


def find(name: str, revision: str | None = None, kind: str = "model") -> Path | None:
    """The folder that holds ``name``, or None where the hub is to be asked.

    Args:
        name: a folder, or a repository of the hub.
        revision: of the repository; its default where None.
        kind: "model", "tokenizer" or "dataset".

    Raises:
        InputError: a folder that is not there or not whole; a repository that is not on disk, and the hub may not be
            asked.
    """
    if Path(name).is_dir():
        if kind == "model" and (gone := lacking(Path(name))):
            raise InputError(f"the model in {name} is not whole: it lacks {gone}", "Fetch it again")
        return Path(name).absolute()
    if _is_path(name):
        raise InputError(f"the {_word(kind)} {name} is not there: no such folder", "Check the path")
    found, fault = _in_cache(name, revision, kind)
    if found is None and offline():
        raise _missing(name, kind, f"no folder of that name in {Path.cwd()}, and {fault}")
    return found


def local_first(download: Callable[..., str]) -> Callable[..., str]:
    """``huggingface_hub.snapshot_download`` for upstream to use: the hub is not asked for what is on disk."""

    @functools.wraps(download)
    def get(repo_id: str, **options: Any) -> str:
        from huggingface_hub.errors import LocalEntryNotFoundError, OfflineModeIsEnabled

        kind = options.get("repo_type") or "model"
        found = find(repo_id, options.get("revision"), kind)
        if found is not None:
            return str(found)
        try:
            return download(repo_id, **options)
        except (LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
            raise _missing(repo_id, kind, "the hub cannot be reached from here") from error

    return get


def data_local_first(load: Callable[..., Any]) -> Callable[..., Any]:
    """``datasets.load_dataset`` for upstream to use: it takes a file of rows, and a saved data set, by their path too.

    What the library makes of local files lies in the run's scratch folder.
    """

    @functools.wraps(load)
    def get(path: str, *arguments: Any, **options: Any) -> Any:
        place = Path(path)
        if place.is_file():
            return _load_file(load, place, options)
        if place.is_dir() and _is_saved(place):
            return _load_saved(place, options)
        if place.is_dir() or "data_files" in options:
            return load(path, *arguments, **_in_scratch(options))
        if _is_path(path):
            raise InputError(f"the data set {path} is not there: no such file or folder", "Check the path")
        try:
            return load(path, *arguments, **options)
        except (ConnectionError, FileNotFoundError) as error:
            if not offline() and not isinstance(error, ConnectionError):
                raise  # the hub has answered
            import datasets.config

            places = f"no folder of that name in {Path.cwd()}, none in the cache {datasets.config.HF_DATASETS_CACHE}"
            raise _missing(path, "dataset", f"{places}, and the hub cannot be reached") from error

    return get


def content_digest(path: str) -> str | None:
    """Names what a file or folder of data holds; None where ``path`` is neither.

    Upstream keeps transformed data sets by their settings: with this among them, changed data make another entry.
    """
    from leonardo.files import digest_of, sha256_file

    place = Path(path)
    if place.is_file():
        return sha256_file(place)
    if not place.is_dir():
        return None
    files = sorted(entry for entry in place.rglob("*") if entry.is_file() and ".cache" not in entry.parts)
    return digest_of([[entry.relative_to(place).as_posix(), sha256_file(entry)] for entry in files])


def name_with_family(model: str) -> str:
    """The model's name, with the family that upstream looks for in it: a folder need not be called after its model."""
    config = Path(model, "config.json")
    if not config.is_file():
        return model
    settings = _settings(config)
    is_composite = settings.get("model_type", "").startswith("qwen3_5") and "text_config" in settings
    return f"{model} (qwen3.5)" if is_composite else model


def offline() -> bool:
    """Whether the hub may not be asked."""
    return any(os.environ.get(name, "").upper() in _ON for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def _is_path(name: str) -> bool:
    return name.startswith((".", "~", os.sep)) or name.count("/") > 1 or Path(name).suffix in _FILE_KINDS


def _in_cache(name: str, revision: str | None, kind: str) -> tuple[Path | None, str]:
    """The snapshot in the hub's cache, or what is wrong there."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    where = f"the cache {constants.HF_HUB_CACHE}"
    repository_type = "dataset" if kind == "dataset" else "model"
    try:
        found = snapshot_download(name, revision=revision, repo_type=repository_type, local_files_only=True)
    except HFValidationError as error:
        raise InputError(f"the {_word(kind)} {name} is neither a folder nor a name of the hub", "Check it") from error
    except LocalEntryNotFoundError:
        return None, f"none in {where}" + (f" at revision {revision}" if revision else "")
    folder = Path(found)
    if kind == "model" and (gone := lacking(folder)):
        return None, f"{where} lacks {gone}"
    interrupted = any((folder.parent.parent / "blobs").glob("*.incomplete"))  # maybe of another revision
    return (None, "") if interrupted and not offline() else (folder, "")


def lacking(folder: Path) -> str:
    """What a folder lacks of a model, as far as it says itself; "" where it is whole.

    Raises:
        InputError: its index of weights or its config.json is none.
    """
    if not (folder / "config.json").is_file():
        return "config.json"
    _settings(folder / "config.json")
    for index in folder.glob("*.index.json"):
        if absent := [shard for shard in _shards(index) if not (folder / shard).is_file()]:
            return absent[0] + (f" and {len(absent) - 1} more" if absent[1:] else "")
    return "" if any(next(folder.glob(pattern), None) for pattern in _WEIGHTS) else f"weights ({', '.join(_WEIGHTS)})"


def _settings(config: Path) -> dict[str, Any]:
    """What a model's config.json says."""
    found = read_json(config)
    if not isinstance(found, dict) or not isinstance(found.get("model_type", ""), str):
        raise InputError(f"{config} describes no model", "Bring the model again")
    return found


def _shards(index: Path) -> list[str]:
    """The files of weights that an index of them names, sorted."""
    found = read_json(index)
    names = found.get("weight_map") if isinstance(found, dict) else None
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise InputError(f"{index} is no index of weights", "Bring the model again")
    return sorted(set(names.values()))


def _missing(name: str, kind: str, where: str) -> InputError:
    how = f"hf download {'--repo-type dataset ' if kind == 'dataset' else ''}{name}"
    return InputError(
        f"the {_word(kind)} {name} is not on this machine: {where}",
        f"Fetch it where there is a network ({how}), or name a folder that holds it",
    )


def _word(kind: str) -> str:
    return "data set" if kind == "dataset" else kind


def _load_file(load: Callable[..., Any], place: Path, options: dict[str, Any]) -> Any:
    kind = _FILE_KINDS.get(place.suffix)
    if kind is None:
        raise InputError(f"the data set {place} has no known kind", f"Known are {', '.join(_FILE_KINDS)}")
    rest = {name: value for name, value in options.items() if name not in ("name", "revision")}
    split = (options.get("split") or "train").partition("[")[0]
    return load(kind, data_files={split: str(place)}, **_in_scratch(rest))


def _in_scratch(options: dict[str, Any]) -> dict[str, Any]:
    folder = os.environ.get(SCRATCH)
    return {"cache_dir": str(Path(folder, "datasets")), **options} if folder else options


def _is_saved(folder: Path) -> bool:
    return (folder / "state.json").is_file() or (folder / "dataset_dict.json").is_file()


def _load_saved(folder: Path, options: dict[str, Any]) -> Any:
    import datasets

    saved, split = datasets.load_from_disk(str(folder)), options.get("split")
    if isinstance(saved, datasets.DatasetDict) and split is not None:
        if split not in saved:
            raise InputError(f"the data set {folder} has no split {split}", f"It has {', '.join(saved)}")
        return saved[split]
    return saved
