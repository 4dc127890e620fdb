from pathlib import Path

import pytest

from leonardo.errors import FailureClass, InputError
from leonardo.gates.trees import Entry
from leonardo.gates.verdicts import TaskVerdict, judge, read_verdicts, selectable, update_verdicts
from leonardo.rollout.verification import Status, Verdict
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files

PASSED, FAILED = Verdict(Status.PASSED, "1 passed in 0.01s"), Verdict(Status.FAILED, "1 failed in 0.01s")
TREE = {"/home/user/in.csv": Entry("file", 0o644, "0:0", 1, "x", "")}
VERIFIER = "import os\ndef test():\n    assert os.path.exists('/home/user/out.txt')\n"


def _task(
    verifier: str = VERIFIER, instruction: str = "Write /home/user/out.txt.", solution: str | None = None
) -> Task:
    return Task("t", instruction, "Bootstrap: docker\nFrom: x", verifier_files(verifier), reference_solution=solution)


def _failure(
    task: Task, null: Verdict = FAILED, reference: Verdict | None = None, leaks: tuple[str, ...] = ()
) -> object:
    verdict = judge(task, "p", null, reference, TREE, leaks)
    assert bool(verdict.evidence) == (verdict.failure is not None)
    return verdict.failure


def test_a_good_task_has_nothing_against_it() -> None:
    assert _failure(_task()) is None
    assert _failure(_task(), FAILED, PASSED) is None
    broken = Verdict(Status.BROKEN, "bash: /x: No such file")
    assert _failure(_task(), broken, PASSED) is None, "it runs what the solution makes"


def test_a_verifier_that_cannot_fail() -> None:
    assert _failure(_task(), PASSED, PASSED) is FailureClass.VERIFIER_ALREADY_PASSES


def test_a_verifier_that_cannot_run() -> None:
    assert _failure(_task(), Verdict(Status.BROKEN, "No module named 'cv2'")) is FailureClass.VERIFIER_BROKEN


def test_a_verifier_that_imports_what_the_agent_makes_is_not_broken() -> None:
    broken = Verdict(Status.BROKEN, "ModuleNotFoundError: No module named 'planner'")
    assert _failure(_task(instruction="Write planner.py and /home/user/out.txt."), broken) is None


def test_a_verifier_that_wants_what_nobody_named() -> None:
    verdict = judge(_task(instruction="Write /home/user/result.csv."), "p", FAILED, None, TREE)
    assert verdict.failure is FailureClass.CONTRADICTS
    assert verdict.evidence == ("the verifier wants /home/user/out.txt, which the instruction does not name",)
    assert _failure(_task(instruction="Write result.csv."), FAILED, PASSED) is None, "yet the reference passes"


def test_a_verifier_that_connects_to_a_port_that_nobody_named() -> None:
    verifier = "import urllib.request\ndef test():\n    urllib.request.urlopen('http://127.0.0.1:9090/')\n"
    assert _failure(_task(verifier, "Serve on port 8080.")) is FailureClass.CONTRADICTS
    assert _failure(_task(verifier, "Serve on port 9090.")) is None


@pytest.mark.parametrize(
    ("verifier", "instruction", "output"),
    [
        ("import requests\ndef test():\n    requests.get('https://api.server.org')\n", "Do it.", ""),
        (VERIFIER, "Download https://server.org/data.zip and write /home/user/out.txt.", ""),
        (VERIFIER, "Write /home/user/out.txt.", "socket.gaierror: [Errno -3] Temporary failure in name resolution"),
    ],
)
def test_a_task_that_needs_another_machine(verifier: str, instruction: str, output: str) -> None:
    task = _task(verifier, instruction)
    assert _failure(task, Verdict(Status.FAILED, output)) is FailureClass.NEEDS_NETWORK
    assert _failure(task, Verdict(Status.FAILED, output), PASSED) is None, "the reference passes without"


def test_a_reference_that_fails_and_a_leak() -> None:
    assert _failure(_task(), FAILED, FAILED) is FailureClass.REFERENCE_FAILS
    assert _failure(_task(), FAILED, PASSED, ("/opt/key: ...",)) is FailureClass.LEAKS


def test_selections_leave_out_what_is_of_no_use_unless_asked_for() -> None:
    tasks = [Task(name, "Do it.", "", {}) for name in ("good", "bad", "new")]
    verdicts = {
        task.digest: TaskVerdict(task.id, task.digest, "p", failure, ("why",))
        for task, failure in zip(tasks, (None, FailureClass.LEAKS), strict=False)
    }
    assert [task.id for task in selectable(tasks, verdicts)] == ["good", "new"]
    assert [task.id for task in selectable(tasks, verdicts, [FailureClass.LEAKS])] == ["good", "bad", "new"]
    assert [task.id for task in selectable(tasks, verdicts, [FailureClass.NEEDS_NETWORK])] == ["good", "new"]


def test_verdicts_are_kept_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "store" / "verdicts.jsonl"
    assert read_verdicts(path) == {}
    first = TaskVerdict("a", "1", "p", FailureClass.LEAKS, ("why",))
    update_verdicts(path, [first, TaskVerdict("b", "2", "p")])
    update_verdicts(path, [TaskVerdict("a", "1", "q")])
    assert read_verdicts(path) == {"1": TaskVerdict("a", "1", "q"), "2": TaskVerdict("b", "2", "p")}


def test_a_file_of_something_else_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "verdicts.jsonl"
    path.write_text('{"task_id": "a"}\n')
    with pytest.raises(InputError, match="line 1 is no verdict"):
        update_verdicts(path, [])
