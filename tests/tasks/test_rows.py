import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from leonardo.errors import InputError
from leonardo.tasks.rows import read_tasks

ROW = {
    "task_id": "task-1",
    "description": "Do it.",
    "container_def": "Bootstrap: docker\nFrom: ubuntu:22.04\n\n%post\n    true\n",
    "test_final_state": "def test_it():\n    assert False\n",
}


def write_rows(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def test_a_row_becomes_a_task(tmp_path: Path) -> None:
    row = ROW | {"family": "files", "reference_solution": "touch /x\n", "note": "ignored"}
    (task,) = read_tasks(write_rows(tmp_path / "rows.jsonl", row))
    assert task.id == "task-1"
    assert task.instruction == "Do it."
    assert task.definition == ROW["container_def"]
    assert task.tests["test_final_state.py"].decode() == ROW["test_final_state"]
    assert "test.sh" in task.tests
    assert task.kind == "files"
    assert task.reference_solution == "touch /x\n"


def test_the_text_of_a_row_is_not_changed(tmp_path: Path) -> None:
    """Columns that look like dates or numbers, and what text has between its lines, come out as they went in."""
    texts = ["2023-10-25", "2023-10-26T10:00:00Z", "12", "a\u2028b\r\nc\x0cd\t", "1e5"]
    rows = [ROW | {"task_id": f"t{n}", "description": text} for n, text in enumerate(texts)]
    assert [task.instruction for task in read_tasks(write_rows(tmp_path / "rows.jsonl", *rows))] == texts


def test_parquet_and_jsonl_give_the_same_tasks(tmp_path: Path) -> None:
    rows = [ROW, ROW | {"task_id": "task-2", "description": "2023-10-25"}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert read_tasks(tmp_path / "rows.parquet") == read_tasks(write_rows(tmp_path / "rows.jsonl", *rows))


def test_a_folder_is_read_by_split_and_not_littered(tmp_path: Path) -> None:
    write_rows(tmp_path / "train-00000.jsonl", ROW)
    write_rows(tmp_path / "train-00001.jsonl", ROW | {"task_id": "task-2"})
    write_rows(tmp_path / "test.jsonl", ROW | {"task_id": "task-3"})
    before = sorted(tmp_path.iterdir())
    assert [task.id for task in read_tasks(tmp_path)] == ["task-1", "task-2"]
    assert [task.id for task in read_tasks(tmp_path, split="test")] == ["task-3"]
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(InputError, match=r"no rows of split 'dev' \(splits there: test, train\)"):
        read_tasks(tmp_path, split="dev")


def test_selection_by_id_and_limit(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", *(ROW | {"task_id": f"t{n}"} for n in range(5)))
    assert [task.id for task in read_tasks(path, limit=2)] == ["t0", "t1"]
    assert [task.id for task in read_tasks(path, ids=["t3", "t1"])] == ["t1", "t3"]
    with pytest.raises(InputError, match="holds no task t9"):
        read_tasks(path, ids=["t1", "t9"])
    with pytest.raises(InputError, match="limit is 0"):
        read_tasks(path, limit=0)


@pytest.mark.parametrize("field", ["description", "container_def", "test_final_state"])
def test_a_missing_field_is_named_with_its_row(tmp_path: Path, field: str) -> None:
    bad = {name: value for name, value in ROW.items() if name != field} | {"task_id": "task-2"}
    path = write_rows(tmp_path / "rows.jsonl", ROW, bad)
    with pytest.raises(InputError) as caught:
        read_tasks(path)
    assert f"{path} row 2: field '{field}' is missing" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ({k: v for k, v in ROW.items() if k != "task_id"}, "field 'task_id' is missing"),
        (ROW | {"task_id": ""}, "field 'task_id' is empty"),
        (ROW | {"task_id": 7}, "field 'task_id' is int, not text"),
        (ROW | {"task_id": "../x"}, "field 'task_id' is '../x'"),
        (ROW | {"task_id": "a b"}, "field 'task_id' is 'a b'"),
        (ROW | {"description": ["a"]}, "field 'description' is list, not text"),
        (ROW | {"test_final_state": "  \n"}, "field 'test_final_state' is empty"),
        (ROW | {"reference_solution": 5}, "field 'reference_solution' is int, not text"),
        (ROW | {"description": "a\ud800"}, "field 'description' holds half a character (\\ud800) at 1"),
        ("{not json", "not JSON"),
        pytest.param("[" * 100_000, "not JSON", id="deep"),
        ("[1, 2]", "a JSON list, not an object"),
    ],
)
def test_a_bad_row_is_one_line_that_says_where(tmp_path: Path, row: object, complaint: str) -> None:
    path = write_rows(tmp_path / "rows.jsonl", ROW | {"task_id": "first"}, row)
    with pytest.raises(InputError) as caught:
        read_tasks(path)
    assert f"{path} row 2: {complaint}" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_an_id_used_twice_is_refused(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.jsonl", ROW, ROW)
    with pytest.raises(InputError, match=r"row 2: field 'task_id' repeats 'task-1' of .* row 1"):
        read_tasks(path)


def test_sources_that_are_none(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for absent in (tmp_path / "absent.jsonl", Path("owner/rows")):  # a path, as commands give it, is never of the hub
        with pytest.raises(InputError, match=r"No rows at .* Give a JSONL or Parquet file, or a folder of them$"):
            read_tasks(absent)
    (tmp_path / "rows.csv").write_text("a,b\n")
    with pytest.raises(InputError, match="neither JSONL nor Parquet"):
        read_tasks(tmp_path / "rows.csv")
    with pytest.raises(InputError, match="holds no rows"):
        read_tasks(write_rows(tmp_path / "empty.jsonl"))
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 cut short")
    with pytest.raises(InputError, match=r"rows\.parquet cannot be read"):
        read_tasks(tmp_path / "rows.parquet")
    assert capfd.readouterr().err == ""
    with pytest.raises(InputError, match="without a revision"):
        read_tasks("owner/rows")


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(InputError) as caught:
        read_tasks("owner/no-such-rows", revision="0123456789abcdef")
    assert "owner/no-such-rows@0123456789abcdef cannot be had from the hub or its cache" in str(caught.value)
    assert "\n" not in str(caught.value)


CONVERTED = {
    "messages": [{"role": "system", "content": "You are."}, {"role": "user", "content": "From the row."}],
    "ground_truth": "task-1",
    "env_config": {"env_name": "swerl_sandbox", "task_id": "task-1", "image": "ubuntu:22.04"},
}


def write_task_data(folder: Path, task_id: str = "task-1", **files: str) -> Path:
    for name, content in {"tests/test.sh": "echo 1\n", **files}.items():
        path = folder / task_id / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def test_the_converted_form(tmp_path: Path) -> None:
    write_task_data(
        tmp_path / "task-data",
        **{
            "instruction.md": "From the file.\n",
            "environment/seeds/a/b.txt": "seed",
            "setup.sh": "#!/bin/bash\nset -e\ntouch /made\n",
        },
    )
    (task,) = read_tasks(write_rows(tmp_path / "rows.jsonl", CONVERTED))
    assert task.instruction == "From the file."
    assert task.seeds == {"a/b.txt": b"seed"}
    assert task.tests == {"test.sh": b"echo 1\n"}
    assert task.image == "ubuntu:22.04"
    assert task.definition == "Bootstrap: docker\nFrom: ubuntu:22.04\n\n%post\n#!/bin/bash\nset -e\ntouch /made\n"


@pytest.mark.parametrize(
    "settings",
    [
        json.dumps(CONVERTED["env_config"]),
        [CONVERTED["env_config"]],
        {"max_steps": 5, "env_configs": [{"env_name": "other"}, CONVERTED["env_config"]]},
        {"env_name": "swerl_sandbox", "image": "ubuntu:22.04", "task_id": None},
    ],
)
def test_every_form_of_env_config(tmp_path: Path, settings: object) -> None:
    data = write_task_data(tmp_path / "elsewhere")
    rows = write_rows(tmp_path / "rows.jsonl", CONVERTED | {"env_config": settings})
    (task,) = read_tasks(rows, task_data=data)
    assert (task.id, task.image, task.instruction, task.definition) == ("task-1", "ubuntu:22.04", "From the row.", "")


def test_an_image_of_its_own_has_the_set_up_in_it(tmp_path: Path) -> None:
    write_task_data(tmp_path, **{"image.txt": "someone/task:1\n", "setup.sh": "touch /x\n"})
    row = CONVERTED | {"env_config": {"env_name": "swerl_sandbox", "task_id": "task-1"}}
    (task,) = read_tasks(write_rows(tmp_path / "rows.jsonl", row))
    assert (task.image, task.definition) == ("someone/task:1", "")


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (CONVERTED | {"env_config": "{"}, "field 'env_config' is not JSON"),
        (CONVERTED | {"env_config": 3}, "field 'env_config' is int without an entry"),
        (CONVERTED | {"env_config": {"env_name": "x", "task_id": "task-1"}}, "neither env_config.image nor image.txt"),
        (CONVERTED | {"messages": []}, "no instruction.md, and field 'messages' holds no user text"),
    ],
)
def test_a_bad_converted_row(tmp_path: Path, row: object, complaint: str) -> None:
    data = write_task_data(tmp_path / "data")
    with pytest.raises(InputError) as caught:
        read_tasks(write_rows(tmp_path / "rows.jsonl", row), task_data=data)
    assert complaint in str(caught.value)


def test_converted_rows_need_their_task_data(tmp_path: Path) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", CONVERTED)
    with pytest.raises(InputError, match="without task data"):
        read_tasks(rows)
    (tmp_path / "data" / "task-1" / "tests").mkdir(parents=True)
    with pytest.raises(InputError, match=r"holds no tests/test\.sh"):
        read_tasks(rows, task_data=tmp_path / "data")
