"""What is made of a job's end, with programs that stand for Slurm's: what they say, and what they cannot say."""

import errno
import json
import os
import shutil
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from leonardo.cli import app
from leonardo.errors import InputError
from leonardo.evidence import Evidence, append, read
from leonardo.gates.steps import append_record
from leonardo.jobs import slurm
from leonardo.jobs.arrive import leftovers, shortcomings
from leonardo.jobs.arrive import main as arrive
from leonardo.jobs.check import _folder
from leonardo.jobs.collect import collect
from leonardo.jobs.step import code_of
from leonardo.stages.launch_basis import stages_of_jobs
from tests.gates.test_signal import record

PLAN = {"name": "small", "title": "t", "array": 0, "pins": {"site": "sealed"}, "resources": {"nodes": 1}, "job": "7"}
ENDED = {"time": "2026-01-01T00:00:00Z", "job": "7", "task": "", "restart": 0, "event": "ended", "code": 0}
UNKNOWN = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
AWAY = "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"

Programs = Callable[..., None]


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Puts shell programs in Slurm's places; no others of Slurm's are found then."""
    place = tmp_path / "bin"
    place.mkdir()
    for name in ("sh", "cat", "git"):
        (place / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(place))

    def put(**scripts: str) -> None:
        for name, script in scripts.items():
            (place / name).write_text(f"#!/bin/sh\n{script}\n")
            (place / name).chmod(0o755)

    return put


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The folder of a job that noted a good end."""
    folder = tmp_path / "runs/job"
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(PLAN))
    (folder / "events.jsonl").write_text(json.dumps(ENDED) + "\n")
    (folder / "lock.json").write_text('{"job": "7"}')
    return folder


def state(name: str, code: int = 0, **more: Any) -> str:
    """A squeue that says this of job 7."""
    return _listing(
        {"job_id": 7, "job_state": name, "exit_code": code, "array_job_id": 0, "array_task_id": None} | more
    )


def states(*names: str) -> str:
    """A squeue that says these of the tasks of job 7."""
    tasks = enumerate(names)
    return _listing(*({"job_id": 8 + n, "job_state": name, "array_job_id": 7, "array_task_id": n} for n, name in tasks))


def _listing(*entries: dict[str, Any]) -> str:
    return f"cat <<'END'\n{json.dumps({'jobs': entries})}\nEND"


def launch(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["launch", *map(str, arguments)])


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.parent.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "scripts",
    [
        {},
        {"squeue": AWAY},
        {"squeue": AWAY, "sacct": "exit 1"},
        {"squeue": AWAY, "sacct": "exit 0"},
        {"squeue": "echo {}"},
        {"squeue": "echo '[[[['"},
        {"squeue": UNKNOWN, "sacct": "echo odd"},
        {"squeue": "echo '{\"jobs\": {}}'"},
        *(
            {"squeue": state("COMPLETED", **odd)}
            for odd in (
                {"job_state": []},
                {"job_state": 5},
                {"job_state": [{}]},
                {"nodes": {"a": 1}},
                {"job_id": {}},
                {"exit_code": float("inf")},
            )
        ),
    ],
    ids=str,
)
def test_a_slurm_that_cannot_be_asked_says_nothing_of_the_job(job: Path, programs: Programs, scripts: Any) -> None:
    """One line, 3, nothing written; the job may well run."""
    programs(sbatch="exit 0", **scripts)
    before = files(job)
    for command in (("collect", job), ("follow", "--once", job)):
        done = launch(*command)
        assert done.exit_code == 3 and done.stdout == "" and len(done.stderr.splitlines()) == 1, done.output
        assert "no longer known" not in done.output
    assert files(job) == before


def test_a_job_that_slurm_does_not_know_is_judged_by_what_it_noted(job: Path, programs: Programs) -> None:
    programs(squeue=UNKNOWN)
    assert collect(job, job.parent / "ledger.jsonl")["ok"] and not (job / "lock.json").exists()
    assert launch("follow", "--once", job).stdout.startswith("job 7: no longer known to Slurm")


def test_what_the_accounting_knows_is_believed_while_the_controller_is_away(job: Path, programs: Programs) -> None:
    programs(squeue=AWAY, sacct="echo '7|FAILED|None|3:0|n1'")
    assert collect(job, job.parent / "ledger.jsonl")["figures"]["exit_code"] == 3


def test_a_job_whose_main_step_never_ran_did_not_end_well(job: Path, programs: Programs) -> None:
    """The site's set-up ended the script with 0 before it."""
    programs(squeue=state("COMPLETED"))
    (job / "events.jsonl").unlink()
    found = collect(job, job.parent / "ledger.jsonl")
    assert (found["ok"], found["figures"]["exit_code"]) == (False, None)
    assert found["reason"] == "the main step noted a good end in 0 of 1 tasks"
    assert [entry.verdict for entry in read(job.parent / "ledger.jsonl")] == ["fail"]


def test_each_task_of_an_array_has_to_note_its_end(job: Path, programs: Programs) -> None:
    entries = [{"job_id": 7 + n, "job_state": "COMPLETED", "exit_code": 0, "array_job_id": 7} for n in range(2)]
    listed = json.dumps({"jobs": [entry | {"array_task_id": n} for n, entry in enumerate(entries)]})
    programs(squeue=f"echo '{listed}'")
    (job / "job.json").write_text(json.dumps(PLAN | {"array": 2}))
    (job / "events.jsonl").write_text("".join(json.dumps(ENDED | {"task": "0"}) + "\n" for _ in range(2)))
    assert collect(job, job.parent / "ledger.jsonl")["reason"] == "the main step noted a good end in 1 of 2 tasks"


def test_a_job_that_was_revoked_has_ended(job: Path, programs: Programs) -> None:
    programs(squeue=state("REVOKED"))
    assert collect(job, job.parent / "ledger.jsonl")["reason"] == "revoked"


def test_a_job_has_one_entry(job: Path, programs: Programs) -> None:
    """Though it was collected by two at a time, and by one that was killed before it could note it."""
    programs(squeue=state("COMPLETED"))
    ledger = job.parent / "ledger.jsonl"
    several = [threading.Thread(target=collect, args=(job, ledger)) for _ in range(4)]
    for each in several:
        each.start()
    for each in several:
        each.join()
    assert len(read(ledger)) == 1
    (job / "job.json").write_text(json.dumps(PLAN))
    (job / "lock.json").write_text('{"job": "7"}')
    assert collect(job, ledger)["again"] and len(read(ledger)) == 1
    assert json.loads((job / "job.json").read_text())["collected"] and not (job / "lock.json").exists()


def test_an_evaluation_whose_parts_cannot_be_joined_is_no_pass(job: Path, programs: Programs) -> None:
    """Where the job ended well nothing is entered, and what is missing may be brought back; else it is a fail."""
    programs(squeue=state("COMPLETED"))
    (job / "job.json").write_text(json.dumps(PLAN | {"pins": {"site": "sealed", "checkpoints": ["base"], "parts": 2}}))
    done = launch("collect", job)
    assert done.exit_code == 2 and "evaluation-base.json: no such file" in done.stderr, done.output
    assert not (job.parent / "ledger.jsonl").exists() and (job / "lock.json").exists()
    (job / "events.jsonl").write_text("")
    done = launch("collect", job)
    assert done.exit_code == 1 and "base: " in done.stdout.splitlines()[0], done.output
    (entry,) = read(job.parent / "ledger.jsonl")
    assert entry.verdict == "fail" and "evaluation-base.json: no such file" in entry.says
    assert launch("collect", job).exit_code == 1 and len(read(job.parent / "ledger.jsonl")) == 1


def test_a_job_that_submit_could_not_note_is_found_in_the_queue(job: Path, programs: Programs) -> None:
    """By its script; the folder is let go once it is ended."""
    (job / "job.json").write_text(json.dumps(PLAN | {"job": ""}))
    lines = f"echo '5|/other/job.sh'; echo '8_[0-3]|{job}/job.sh'; echo '8_4|{job}/job.sh'; echo '9+1|{job}/job.sh'"
    programs(squeue=lines, scancel=f'echo "$1" >> {job}/cancelled')
    assert "job 8, 9 was queued, and not noted" in launch("collect", job).stderr and (job / "lock.json").exists()
    assert launch("follow", job).stdout.startswith("job 8, 9 was queued, and not noted")
    assert launch("cancel", job).exit_code == 0 and (job / "cancelled").read_text() == "8\n9\n"
    programs(squeue="exit 0")
    assert "was never queued" in launch("collect", job).stderr and not (job / "lock.json").exists()


DEEP = b"[" * 100_000
ODD = [b"", b"5", b"null", b"[]", b"{}", b'{"name": "sm', b"\xff", DEEP, b"\0" * 9]


@pytest.mark.parametrize(
    "content",
    [
        *ODD,
        *(
            json.dumps(PLAN | changes).encode()
            for changes in (
                {"pins": []},
                {"pins": {"stage": "/etc", "engine": "desk"}},
                {"pins": {"checkpoints": 5}},
                {"pins": {"seed": float("nan")}},
                {"array": "x"},
                {"resources": []},
                {"sandboxes": {"a": 1}},
                {"job": "--help"},
                {"job": 7},
                {"collected": "no"},
            )
        ),
    ],
    ids=lambda content: content[-40:],
)
def test_a_damaged_plan_is_one_line_that_names_it(job: Path, programs: Programs, content: bytes) -> None:
    """In whatever reads it; nothing is written."""
    programs(squeue=state("COMPLETED"))
    (job / "job.json").write_bytes(content)
    before = files(job)
    for command in (("collect", job), ("follow", "--once", job), ("cancel", job)):
        done = launch(*command)
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1) and f"{job}/job.json" in done.stderr
    assert files(job) == before
    assert arrive([str(job / "job.json"), str(job / "scratch")]) == 2


def test_a_damaged_line_of_the_events_is_passed_over(job: Path, programs: Programs) -> None:
    """It never blocks the collecting."""
    programs(squeue=state("COMPLETED"))
    odd = [{"restart": "a"}, {"event": 5}, {"code": "x"}, {"task": [1]}, {"code": float("nan")}]
    lines = [*ODD, *(json.dumps(ENDED | changes).encode() for changes in odd), json.dumps(ENDED).encode()]
    (job / "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    for number, content in enumerate((*ODD, b'{"layers": "a", "wanted": 1, "seconds": 1, "operations": 1}')):
        (job / f"unpacked-n{number}.json").write_bytes(content)
    found = collect(job, job.parent / "ledger.jsonl")
    assert found["ok"] and len(found["events"]) == 1 and "layers_unpacked" not in found["figures"]


@pytest.mark.parametrize(("name", "code"), [("COMPLETED", 0), ("FAILED", 1)])
def test_a_damaged_line_of_the_step_records_is_named(job: Path, programs: Programs, name: str, code: int) -> None:
    """The rest is gathered, whatever the job's end was, and it is no pass; follow says it, too."""
    programs(squeue=state(name, code << 8))
    append_record(job / "steps.jsonl", record(1))
    with (job / "steps.jsonl").open("ab") as stream:
        stream.write(b"\xff\0garbage\n{}\n")
    append_record(job / "steps.jsonl", record(2))
    done = launch("follow", "--once", job)
    assert "step 2: " in done.output and f"{job}/steps.jsonl line 2 is no step record" in done.output
    done = launch("collect", job)
    assert done.exit_code == 1 and "steps.jsonl line 2 is no step record" in done.output and "1 more" in done.output
    found = json.loads((job / "evidence.json").read_text())
    assert (found["ok"], found["figures"]["steps"]) == (False, 2) and not (job / "lock.json").exists()
    assert [entry.verdict for entry in read(job.parent / "ledger.jsonl")] == ["fail"]


@pytest.mark.parametrize("link", [False, True])
def test_step_records_that_are_no_file_are_no_pass(job: Path, programs: Programs, link: bool) -> None:
    programs(squeue=state("COMPLETED"))
    path = job / "steps.jsonl"
    path.symlink_to("nowhere") if link else path.mkdir()
    found = collect(job, job.parent / "ledger.jsonl")
    assert (found["ok"], found["reason"]) == (False, f"{path} is no file")


def test_a_job_that_was_never_queued_can_be_let_go_without_a_scheduler(job: Path, programs: Programs) -> None:
    """By what collect and cancel say; the folder is then free for the next."""
    programs()
    (job / "job.json").write_text(json.dumps(PLAN | {"job": ""}))
    (job / "lock.json").write_text("{}")
    for command in ("collect", "cancel"):
        done = launch(command, job)
        assert done.exit_code == 3 and done.stderr.rstrip().endswith(f"rm {job}/lock.json")
    assert [finding.id for finding in _folder(job)] == ["run.lock"]
    (job / "lock.json").unlink()
    assert list(_folder(job)) == []


@pytest.fixture
def short() -> Iterator[Path]:
    """A place whose path is short enough for a job's scratch."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def test_scratch_of_jobs_that_have_ended_is_left_over(short: Path, programs: Programs) -> None:
    """By Slurm's word alone; what is no job's, or another's, is not touched."""
    for name in ("l1", "l2", "l3", "l4", "lx"):
        assert not list(shortcomings({}, short / name))
    (short / "l6").mkdir()
    (short / "l7").symlink_to("l1")
    programs(squeue="echo 2; echo 3")
    assert sorted(path.name for path in leftovers(short / "l3")) == ["l1", "l4"]
    os.chown(short / "l4", 12345, -1) if os.getuid() == 0 else shutil.rmtree(short / "l4")
    assert [path.name for path in leftovers(short / "l3")] == ["l1"]
    programs(squeue="echo 2")  # an answer without the job that asks
    assert not list(leftovers(short / "l3"))
    programs(squeue=AWAY)
    assert not list(leftovers(short / "l3"))


def test_what_a_shell_narrows_is_asked_whole(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden partitions, too, and by the account's number, whatever LOGNAME says."""
    for name in ("SQUEUE_PARTITION", "SQUEUE_STATES", "SACCT_FORMAT", "SCANCEL_USER", "LOGNAME"):
        monkeypatch.setenv(name, "other")
    asked = f"""[ -z "$SQUEUE_PARTITION$SQUEUE_STATES$SACCT_FORMAT$SCANCEL_USER" ] || exit 0
case "$*" in "--all --noheader --user={os.getuid()} --format="*) echo "3|/run/job.sh";; esac"""
    programs(squeue=asked)
    assert slurm.alive() == {"3|/run/job.sh"} and slurm.queued(Path("/run/job.sh")) == ["3"]


@pytest.mark.parametrize(("ends", "words"), [(("FAILED",), "failed"), (("COMPLETED", "CANCELLED"), "cancelled")])
def test_what_waits_for_a_job_that_ended_badly_would_never_start(
    programs: Programs, ends: tuple[str, ...], words: str
) -> None:
    """Slurm would take it; a job that is on its way, or has ended well, is waited for."""
    programs(sbatch="exit 1", squeue=states(*ends))
    with pytest.raises(InputError, match=f"job 7 has ended .*{words}.*what waits for it would never start"):
        slurm.require_waitable(["7"])
    for fine in (("COMPLETED",), ("RUNNING", "COMPLETED"), ("PENDING",)):
        programs(squeue=states(*fine))
        slurm.require_waitable(["7"])


@pytest.mark.parametrize("content", ODD, ids=lambda content: content[-40:])
@pytest.mark.parametrize("name", ["evidence.json", "submitted.json", "lock.json"])
def test_what_else_is_damaged_is_one_line(job: Path, programs: Programs, name: str, content: bytes) -> None:
    programs(squeue=state("COMPLETED"))
    if name == "evidence.json":
        (job / "job.json").write_text(json.dumps(PLAN | {"collected": True}))
    (job / name).write_bytes(content)
    done = launch("collect", job)
    if name == "lock.json":
        assert done.exit_code == 0
    else:
        assert done.exit_code == 2 and f"{job}/{name}" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "content", [*ODD, b'{"exit_code": 0}', b'{"exit_code": "x", "job": "", "restart": "0"}'], ids=str
)
def test_a_damaged_note_of_the_main_step_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ended.json").write_bytes(content)
    assert code_of(tmp_path / "ended.json") is None


def test_a_damaged_plan_beside_is_named_where_jobs_are_looked_for(job: Path) -> None:
    (job / "job.json").write_bytes(DEEP)
    with pytest.raises(InputError, match=r"job\.json is nested too deeply"):
        list(stages_of_jobs(job.parent, ["7"], "desk"))


def test_a_full_disk_at_the_beginning_is_one_line(
    job: Path, short: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """3; such as where the trainer's state is mended."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("model_states.pt", "optim_states.pt"):
        (job / "state/global_step1").mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(job / "state/global_step1" / name, "w"):
            pass
    (job / "state/latest").write_text("global_step2")
    (job / "job.json").write_text(json.dumps(PLAN | {"ray": "/ray", "folder": str(job)}))
    monkeypatch.setattr(os, "fsync", full)
    assert arrive([str(job / "job.json"), str(short / "l3")]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{job}/state/latest: the saved state cannot be made ready (No space left on device)" in line


def test_a_full_disk_is_said_with_its_place(job: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    """3, no entry, and the folder is still the job's."""
    programs(squeue=state("COMPLETED"))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (job.parent / "ledger.jsonl").touch()
    monkeypatch.setattr(os, "fsync", full)
    done = launch("collect", job)
    assert done.exit_code == 3 and f"{job}/evidence.json: No space left" in done.stderr, done.stderr
    with pytest.raises(OSError, match=r"ledger\.jsonl"):
        append(job.parent / "ledger.jsonl", Evidence(name="x", verdict="pass"))
    assert (job / "lock.json").exists() and not read(job.parent / "ledger.jsonl")
