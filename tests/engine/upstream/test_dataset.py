import json

from leonardo.engine.upstream.dataset import write_dataset
from leonardo.rollout.prompts import SYSTEM_PROMPT
from leonardo.tasks.desk import generate
from leonardo.tasks.rows import read_tasks


def test_tasks_come_back_from_what_upstream_reads(tmp_path):
    tasks = [task.task for task in generate("train", 3, seed=1)]
    images = {task.id: f"prepared://{'0' * 63}{number}" for number, task in enumerate(tasks)}

    dataset = write_dataset(tmp_path, tasks, images, max_steps=6)

    rows = [json.loads(line) for line in (dataset.folder / "train.jsonl").read_text().splitlines()]
    assert [row["messages"] for row in rows] == [[{"role": "user", "content": task.instruction}] for task in tasks]
    assert {row["dataset"] for row in rows} == {"passthrough"}
    (entry,) = rows[1]["env_config"]["env_configs"]
    assert (entry["task_id"], entry["image"]) == (tasks[1].id, images[tasks[1].id])
    assert rows[0]["env_config"]["max_steps"] == 6
    assert [row["env_config"]["family"] for row in rows] == [task.kind for task in tasks]
    assert dataset.system_prompt.read_text() == SYSTEM_PROMPT
    for task in tasks:
        folder = dataset.task_data / task.id
        assert (folder / "instruction.md").read_text() == task.instruction
        assert {path.name: path.read_bytes() for path in (folder / "tests").iterdir()} == task.tests


def test_the_data_set_is_the_converted_form_that_this_project_reads(tmp_path):
    tasks = [task.task for task in generate("train", 2, seed=1)]
    dataset = write_dataset(tmp_path, tasks, {task.id: f"prepared://{'0' * 64}" for task in tasks}, max_steps=6)

    again = read_tasks(dataset.folder / "train.jsonl", task_data=dataset.task_data)

    assert [(task.id, task.instruction, task.tests) for task in again] == [
        (task.id, task.instruction, task.tests) for task in tasks
    ]
