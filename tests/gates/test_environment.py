import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from leonardo import evidence
from leonardo.assets.store import AssetStore
from leonardo.errors import FailureClass, InputError
from leonardo.gates.environment import TaskReport, run_gates
from leonardo.sandbox.driver import Driver
from leonardo.site import Site
from leonardo.stages.environment import gates_command
from leonardo.stages.gate import Selection
from leonardo.tasks.task import Task
from leonardo.tasks.verifier import verifier_files

MakeTask = Callable[..., Task]
POST = "mkdir -p /data /home/user && echo a > /data/a && chown 33:33 /data/a && chmod 4755 /data/a"


@pytest.fixture
def check(store: AssetStore, driver: Driver, make_task: MakeTask) -> Callable[..., TaskReport]:
    """The gates' report on a task with this set-up, verifier and solution."""

    def run(verifier: str, solution: str | None, post: str = POST, **fields: object) -> TaskReport:
        task = make_task(post, tests=verifier_files(verifier), reference_solution=solution, **fields)
        return run_gates([task], store, driver, jobs=1, runtime=False).tasks[0]

    return run


def test_a_good_task_passes_every_gate(check: Callable[..., TaskReport]) -> None:
    report = check("#!/bin/bash\ngrep -q b /data/b\n", "echo b > /data/b\n", task_id="good")
    assert (report.built, report.null_fails, report.reference_passes, report.reset_identical) == (True,) * 4
    assert report.ok
    assert report.failure is None


def test_services_of_a_solution_still_run(check: Callable[..., TaskReport]) -> None:
    verifier = "#!/bin/bash\nread -r pid < /data/pid && kill -0 $pid\n"
    report = check(verifier, "sleep 1000 > /dev/null 2>&1 &\necho $! > /data/pid\n")
    assert report.ok, report.reason


def test_the_solution_starts_where_the_agent_does(check: Callable[..., TaskReport]) -> None:
    report = check("#!/bin/bash\n[[ -e /workspace/here ]]\n", "touch here\n")
    assert report.ok, report.reason


def test_links_to_files_of_the_set_up_are_links(check: Callable[..., TaskReport]) -> None:
    """An overlay would give the two names different inode numbers, and part links that are written to."""
    post = "mkdir -p /data/old && echo a > /data/old/a && echo b > /data/old/b && ln /data/old/b /data/old/c"
    verifier = """#!/bin/bash
[[ -e /data/new/a && $(stat -c '%i %h' /data/new/a) == "$(stat -c '%i 2' /data/old/a)" ]] || exit 1
[[ $(cat /data/old/c) == changed && $(stat -c %h /data/old/c) == 2 ]]
"""
    report = check(verifier, "mkdir /data/new\nln /data/old/a /data/new/a\necho changed > /data/old/b\n", post)
    assert report.ok, report.reason


def test_seeds_are_there(check: Callable[..., TaskReport]) -> None:
    verifier = "#!/bin/bash\ngrep -q seed /workspace/a/b && [[ -e /done ]]\n"
    report = check(verifier, "touch /done\n", seeds={"a/b": b"seed"})
    assert report.ok, report.reason


@pytest.mark.parametrize(
    ("verifier", "solution", "failure", "word"),
    [
        ("#!/bin/bash\ntrue\n", "true\n", FailureClass.VERIFIER_ALREADY_PASSES, "passes on the initial state"),
        ("#!/bin/bash\nfalse\n", "true\n", FailureClass.REFERENCE_FAILS, "the verifier fails"),
        ("#!/bin/bash\n[[ -e /x ]]\n", "echo oh\nexit 3\n", FailureClass.REFERENCE_FAILS, "exit code 3: oh"),
        ("#!/no/interpreter\n", None, FailureClass.VERIFIER_BROKEN, "cannot run"),
        ("import no_such_module\n", "true\n", FailureClass.VERIFIER_BROKEN, "cannot run: "),
    ],
)
def test_a_bad_task_gets_its_class_and_one_line(
    check: Callable[..., TaskReport], verifier: str, solution: str | None, failure: FailureClass, word: str
) -> None:
    report = check(verifier, solution)
    assert report.failure is failure
    assert word in report.reason
    assert "\n" not in report.reason
    assert not report.ok
    assert report.reset_identical


def test_a_verifier_that_needs_what_the_solution_makes(check: Callable[..., TaskReport]) -> None:
    """Broken on the initial state, and yet a good verifier: what it runs is not there yet."""
    report = check(
        "#!/bin/bash\n/data/script\n", "printf '#!/bin/bash\\ntrue\\n' > /data/script\nchmod +x /data/script\n"
    )
    assert report.null_fails
    assert report.ok, report.reason


def test_a_task_without_a_solution_has_one_gate_less(check: Callable[..., TaskReport]) -> None:
    report = check("#!/bin/bash\nfalse\n", None)
    assert report.reference_passes is None
    assert report.ok


def test_a_set_up_that_fails_is_classified_and_the_others_go_on(
    store: AssetStore, driver: Driver, make_task: MakeTask
) -> None:
    tasks = [
        make_task("exit 7", "bad"),
        make_task("true", "good", tests=verifier_files("#!/bin/bash\n[[ -e /b ]]\n"), reference_solution="touch /b\n"),
    ]
    report = run_gates(tasks, store, driver, runtime=False)
    assert not report.ok
    assert report.tasks[0].failure is FailureClass.SET_UP
    assert report.tasks[0].null_fails is None
    assert report.tasks[1].ok
    figures = report.figures
    assert (figures["rows"], figures["built"], figures["null_fails"], figures["reset_identical"]) == (2, 1, 1, 1)


def test_what_leaves_no_room_for_the_verifier_breaks_it_and_nothing_else(check: Callable[..., TaskReport]) -> None:
    """An agent may do the same: it must get its 0, and the run go on."""
    report = check("#!/bin/bash\n[[ -e /done ]]\n", "cat /dev/zero > /full || true\n", task_id="full")
    assert report.failure is FailureClass.VERIFIER_BROKEN
    assert "put_archive failed at '/tests': No space left on device" in report.reason
    assert report.reset_identical


# --- the whole command ----------------------------------------------------------------------------------------------


def write_rows(path: Path, *rows: dict[str, str]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


ROW = {
    "task_id": "t1",
    "description": "Make /data/b.",
    "container_def": f"Bootstrap: docker\nFrom: tiny:1\n\n%post\n    {POST}\n",
    "test_final_state": "#!/bin/bash\n[[ -e /data/b ]]\n",
    "reference_solution": "touch /data/b\n",
}


def test_the_command_writes_its_verdict(tmp_path: Path, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", ROW)
    out = tmp_path / "out" / "gates.json"
    assert gates_command(Selection(rows), out, site=tmp_path / "site.yaml", runs=tmp_path / "runs") == 0
    verdict = json.loads(out.read_text())
    assert verdict["ok"] is True
    names = ("rows", "built", "null_fails", "reference_passes", "reset_identical", "runtime_works", "leftovers")
    assert {name: verdict["figures"][name] for name in names} == dict.fromkeys(names, 1) | {"leftovers": 0}
    assert verdict["pins"]["driver"]
    (entry,) = evidence.read(tmp_path / "runs" / evidence.LEDGER)
    assert (entry.name, entry.kind, entry.verdict) == ("gates", "gate", "pass")
    assert {"resets that differ", "runtimes that fail a check", "leftovers"} <= {each.figure for each in entry.criteria}
    assert verdict["pins"]["manifest"]
    shown = capsys.readouterr().out
    assert "ok: rows 1, built 1" in shown
    assert "a test" in shown  # what stands in for the base image


def test_the_command_fails_where_a_gate_does(tmp_path: Path, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    bad = ROW | {"task_id": "t2", "test_final_state": "import no_such_module\n"}
    out, rows = tmp_path / "gates.json", write_rows(tmp_path / "rows.jsonl", ROW, bad)
    assert gates_command(Selection(rows), out, site=tmp_path / "site.yaml") == 1
    verdict = json.loads(out.read_text())
    assert verdict["ok"] is False
    assert [task["failure"] for task in verdict["figures"]["tasks"]] == [None, "verifier-broken"]
    assert "NOT OK" in capsys.readouterr().out


def test_bad_rows_leave_nothing_behind(tmp_path: Path, site: Site) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", {key: value for key, value in ROW.items() if key != "description"})
    with pytest.raises(InputError, match="row 1: field 'description' is missing"):
        gates_command(Selection(rows), tmp_path / "gates.json", site=tmp_path / "site.yaml")
    assert not (tmp_path / "gates.json").exists()
    assert not site.cache.exists()


@pytest.mark.parametrize(
    ("change", "arguments", "complaint"),
    [
        ({"description": None}, (), "row 1: field 'description' is missing"),
        ({"container_def": "Bootstrap: docker\n%post\ntrue\n"}, (), "Task t1: Definition: no From: line"),
        ({"container_def": "Bootstrap: docker\nFrom: tiny:1\n%psot\ntrue\n"}, (), "line 3: unknown section '%psot'"),
        ({}, ("--site", "moon"), "No site moon"),
        ({}, ("--driver", "moon"), "no sandbox driver is called 'moon'"),
    ],
)
def test_bad_input_is_one_line_and_no_traceback(
    tmp_path: Path, site: Site, change: dict[str, str], arguments: tuple[str, ...], complaint: str
) -> None:
    rows = write_rows(tmp_path / "rows.jsonl", ROW | change)
    command = [sys.executable, "-m", "leonardo.cli", "gates", str(rows), "--out", str(tmp_path / "out")]
    command += ["--site", str(tmp_path / "site.yaml"), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=60)
    assert result.returncode == 2
    assert complaint in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
    assert not (site.cache / "assets").exists()
