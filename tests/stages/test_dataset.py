import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InputError
from leonardo.gates.verdicts import FILE, TaskVerdict, update_verdicts
from leonardo.rollout.episode import EpisodeSettings
from leonardo.site import Site
from leonardo.stages.dataset import write_data
from leonardo.tasks.rows import read_tasks
from leonardo.tasks.task import Task


def test_rows_with_prepared_states_become_a_data_set_and_the_others_are_counted(
    site: Site, store: AssetStore, make_task: Callable[..., Task], tmp_path: Path
) -> None:
    tasks = [make_task(f"echo {name} > /{name}", name) for name in ("good", "easy", "absent")]
    tasks.append(make_task("exit 3", "broken"))
    entries = store.build([task for task in tasks if task.id != "absent"])
    easy = FailureClass.VERIFIER_ALREADY_PASSES
    found = TaskVerdict("easy", tasks[1].digest, entries[1].prepared, easy, ("it passes",))
    update_verdicts(store.root / FILE, [found])

    def write(folder: Path, **options: object) -> dict[str, object]:
        return write_data(
            tasks, folder, tmp_path / "out" / "data.json", EpisodeSettings(steps=9), site=tmp_path / "site.yaml",
            console=Console(quiet=True), **options,
        )  # fmt: skip

    figures = write(tmp_path / "new" / "data")
    assert figures == {"rows": 4, "written": 1, "left_out": {easy: 1, "not-built": 2}}
    (row,) = [json.loads(line) for line in (tmp_path / "new/data/dataset/train.jsonl").read_text().splitlines()]
    (environment,) = row["env_config"]["env_configs"]
    assert (environment["task_id"], environment["image"]) == ("good", f"prepared://{entries[0].prepared}")
    assert row["env_config"]["max_steps"] == 9
    (again,) = read_tasks(tmp_path / "new/data/dataset/train.jsonl", task_data=tmp_path / "new/data/task-data")
    assert (again.id, again.tests) == ("good", tasks[0].tests)
    assert (tmp_path / "new/data/left-out.txt").read_text().splitlines()[1:] == [
        "broken\tnot-built",
        f"easy\t{easy}",
    ]
    assert write(tmp_path / "more", also=[easy])["written"] == 2
    with pytest.raises(InputError, match="is there already"):
        write(tmp_path / "new" / "data")
    tasks = [tasks[2]]
    with pytest.raises(InputError, match="none of 1 rows can be used"):
        write(tmp_path / "none")
    assert not list(tmp_path.glob("*none*"))
