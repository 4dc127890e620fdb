"""A job's folder, its main step, quotas and Slurm's words, where no Slurm is needed."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from leonardo.errors import InputError
from leonardo.jobs import slurm
from leonardo.jobs.arrive import missing, shortcomings
from leonardo.jobs.folder import earlier_events, events, holder, note_job, read_plan, release, write_folder
from leonardo.jobs.plan import JobPlan, Resources
from leonardo.jobs.space import parse_quota
from leonardo.jobs.step import code_of
from tests.processes import running


@pytest.fixture
def plan(tmp_path: Path) -> JobPlan:
    """A small job."""
    asked = Resources("test", 1, 5, 1, 0.5, 0.1)
    here = Path(sys.executable)
    return JobPlan("small", "small", ("true",), tmp_path / "run", tmp_path, here, Path("/tmp"), asked)


def until(seen: Callable[[], bool]) -> None:
    """Wait."""
    deadline = time.monotonic() + 20
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def lives(process: int) -> bool:
    """Whether it has not ended; who is to take note of that may be slow."""
    try:
        return psutil.Process(process).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_folder_has_one_owner(plan: JobPlan) -> None:
    """Who comes second is told whose it is; after its release it is free."""
    script = write_folder(plan, "#!/bin/bash\n")
    assert os.access(script, os.X_OK)
    note_job(plan.folder, "17")
    assert read_plan(plan.folder)["job"] == "17" and (holder(plan.folder) or {})["job"] == "17"
    with pytest.raises(InputError, match="is held by job 17"):
        write_folder(plan, "")
    release(plan.folder)
    assert holder(plan.folder) is None
    write_folder(plan, "")


def test_a_job_that_goes_on_in_a_folder_has_its_own_events(plan: JobPlan) -> None:
    """What the job before noted is set aside, or its end would be taken for this one's."""
    whole = {"time": "t", "job": "1", "task": "", "restart": 0, "event": "ended", "code": 0}
    for job in ("1", "2"):
        write_folder(plan, "")
        release(plan.folder)
        assert not list(events(plan.folder))
        (plan.folder / "events.jsonl").write_text(json.dumps(whole | {"job": job}) + "\n")
    (plan.folder / "evidence.json").touch()
    write_folder(plan, "")
    assert not (plan.folder / "evidence.json").exists()
    assert [event.job for event in earlier_events(plan.folder)] == ["1", "2"]
    assert (plan.folder / "evidence-2.json").exists()


def test_no_folder_of_a_job(tmp_path: Path) -> None:
    """Says so, and names the file."""
    with pytest.raises(InputError, match=r"is no job's folder \(job\.json cannot be read\)"):
        read_plan(tmp_path)


def test_an_event_that_was_cut_short_is_passed_over(tmp_path: Path) -> None:
    """The node died while it wrote."""
    whole = {"time": "t", "job": "1", "task": "", "restart": 0, "event": "started", "code": None}
    (tmp_path / "events.jsonl").write_text(json.dumps(whole) + "\n" + json.dumps(whole)[:30])
    assert [event.event for event in events(tmp_path)] == ["started"]


@pytest.mark.parametrize(
    ("program", "stop", "code"),
    [
        ("raise SystemExit(7)", False, 7),
        ("import os; os.kill(os.getpid(), 9)", False, 137),
        ("import time; time.sleep(60)", True, 143),
    ],
)
def test_main_step(tmp_path: Path, program: str, stop: bool, code: int) -> None:
    """Its exit code is the trainer's, noted for this start of this job and for no other."""
    ended = tmp_path / "ended.json"
    if stop:
        (tmp_path / "stop").touch()
    command = [sys.executable, "-m", "leonardo.jobs.step", "run", str(tmp_path / "stop"), str(ended), "--"]
    environment = {**os.environ, "SLURM_JOB_ID": "5", "SLURM_RESTART_COUNT": "1"}
    done = subprocess.run([*command, sys.executable, "-c", program], env=environment)
    assert done.returncode == code and json.loads(ended.read_text())["asked_to_end"] == stop
    said = [sys.executable, "-m", "leonardo.jobs.step", "ended", str(ended)]
    assert subprocess.check_output(said, env=environment).decode().strip() == str(code)
    assert subprocess.check_output(said, env={**environment, "SLURM_RESTART_COUNT": "2"}) == b""
    assert code_of(tmp_path / "none.json") is None


@pytest.mark.parametrize(
    ("said", "patience", "code"),
    [
        ("USR1", "60", 5),  # it ends by itself when it sees the file
        ("", "60", 5),  # the file was just made
        ("USR1", "0.1", 143),
        ("USR1, TERM", "60", 143),
        ("TERM", "60", 143),
    ],
)
def test_a_step_with_time_to_save(tmp_path: Path, said: str, patience: str, code: int) -> None:
    """It is told by a file, and gets TERM when its time is up, or at once when the job gets TERM, then or later."""
    stop, ended, ready, seen = (tmp_path / name for name in ("stop", "ended.json", "ready", "seen"))
    program = f"""import os, sys, time
open({str(ready)!r}, "w").close()
while not os.path.exists(os.environ["LEONARDO_STOP"]): time.sleep(0.01)
open({str(seen)!r}, "w").close()
time.sleep(60) if {code} == 143 else sys.exit({code})"""
    command = [sys.executable, "-m", "leonardo.jobs.step", "run", str(stop), str(ended), "--patience", patience, "--"]
    with running([*command, sys.executable, "-c", program]) as step:
        for word, answer in zip(said.split(", "), (ready, seen), strict=False):
            while not answer.exists():
                time.sleep(0.01)
            stop.write_text(f"{word}\n")
        assert step.wait(30) == code
    assert json.loads(ended.read_text())["asked_to_end"]


_DEAF = "trap '' TERM; touch ready; for i in $(seq 300); do sleep 0.1; done"
_HURRIED = "import sys; from leonardo.jobs import step; step._PATIENCE = 0.3; sys.exit(step.main(sys.argv[1:]))"


@pytest.mark.parametrize("said", ["USR1", "TERM"])
def test_a_trainer_that_is_deaf_to_term_is_killed(tmp_path: Path, said: str) -> None:
    """The job would come to its limit with it, and not be queued again."""
    command = [sys.executable, "-c", _HURRIED, "run", "stop", "ended.json", "--patience", "0.1", "--"]
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(Path.cwd())}, "stderr": subprocess.PIPE}
    with running([*command, "bash", "-c", _DEAF], **options) as step:
        until((tmp_path / "ready").exists)
        (tmp_path / "stop").write_text(said)
        words = step.communicate(timeout=20)[1]
    note = json.loads((tmp_path / "ended.json").read_text())
    assert (step.returncode, note["exit_code"], note["asked_to_end"]) == (137, 137, True)
    assert "not ended 0.3 s after TERM: KILL" in words


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGUSR1])
def test_a_trainer_does_not_outlive_its_step(tmp_path: Path, number: signal.Signals) -> None:
    """USR1 is for the job's script; a file that is no text says nothing but that the job is to stop."""
    stop, trainer = tmp_path / "stop", tmp_path / "trainer"
    program = f"echo $$ > {trainer}.part; mv {trainer}.part {trainer}; exec sleep 60"
    command = [sys.executable, "-m", "leonardo.jobs.step", "run", str(stop), str(tmp_path / "e")]
    with running([*command, "--patience", "0.1", "--", "bash", "-c", program]) as step:
        until(trainer.exists)
        step.send_signal(number)
        if number == signal.SIGUSR1:
            stop.write_bytes(b"\xff\xfe")
        assert step.wait(20) == (-9 if number == signal.SIGKILL else 143)
    until(lambda: not lives(int(trainer.read_text())))


def test_a_note_that_cannot_be_written(tmp_path: Path) -> None:
    """One line, and the trainer's exit code."""
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "leonardo.jobs.step", "run", str(tmp_path / "stop"), str(tmp_path / "file/ended")]
    done = subprocess.run([*command, "--", "bash", "-c", "exit 7"], capture_output=True, text=True)
    assert done.returncode == 7 and len(done.stderr.splitlines()) == 1
    assert "the trainer ended with 7, but" in done.stderr


@pytest.mark.parametrize(
    "odd", [["--watch", "s", "x", "1"], ["--watch", "s", "1", "nan"], ["--patience", "nan"], ["--patience=-1"]]
)
def test_what_is_no_number_of_seconds_is_refused(tmp_path: Path, odd: list[str]) -> None:
    """2, and no trainer."""
    command = [sys.executable, "-m", "leonardo.jobs.step", "run", str(tmp_path / "s"), str(tmp_path / "e"), *odd]
    done = subprocess.run([*command, "--", "touch", str(tmp_path / "begun")], capture_output=True, text=True)
    assert done.returncode == 2 and "is no number of seconds" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr and not list(tmp_path.iterdir())


def test_a_trainer_that_cannot_be_started(tmp_path: Path) -> None:
    """3: the machine's fault."""
    command = [sys.executable, "-m", "leonardo.jobs.step", "run", str(tmp_path / "s"), str(tmp_path / "e"), "--", "/no"]
    assert subprocess.run(command).returncode == 3


def test_arrival(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not there, what is empty, too long a name, too little space, too few GPUs: a line each."""
    (tmp_path / "empty").mkdir()
    needs = {str(tmp_path / "none"): "Bring it", str(tmp_path / "empty"): "Fill it", str(tmp_path): "fine"}
    plan = {"needs": needs, "resources": {"tmp": 1e9, "gpus": 4}}
    assert [line.rsplit("/", 1)[1] for line in missing(plan)] == [
        "none is not there. Bring it",
        "empty is empty. Fill it",
    ]
    assert "too long for sockets" in next(shortcomings(plan["resources"], Path("/tmp/" + "x" * 40)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    scratch = Path(f"/tmp/l{os.getpid()}")
    try:
        space, gpus = shortcomings(plan["resources"], scratch)
    finally:
        shutil.rmtree(scratch)
    assert "the job needs 1e+09" in space and gpus == "2 GPUs are visible, the job needs 4"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("  /leonardo_work 1048576 0 3145728 - 900 0 1000 -\n", (2.0, 100)),
        ("  /leonardo_work 4194304* 0 3145728 6d 900 0 0 -\n", (-1.0, None)),
        ("  /leonardo_work 1048576 0 0 - 900 0 0 -\n", None),
        ("nothing", None),
    ],
)
def test_lustre_quota(text: str, left: tuple[float, float | None] | None) -> None:
    """What is left of bytes and files; no limit is none."""
    assert parse_quota(text) == left


def test_states_of_both_of_slurms_forms() -> None:
    """22.05 writes numbers, 23.11 objects and lists."""
    old = {"job_id": 5, "job_state": "FAILED", "exit_code": 768, "array_job_id": 0, "array_task_id": None}
    new = {
        "job_id": 9,
        "job_state": ["TIMEOUT"],
        "exit_code": {"return_code": {"set": True, "number": 3}},
        "array_job_id": {"set": True, "number": 7},
        "array_task_id": {"set": True, "number": 2},
        "restart_cnt": 1,
        "state_reason": "None",
        "nodes": "n1",
    }
    assert slurm._from_squeue(old) == slurm.State("5", "FAILED", "", 3)
    assert slurm._from_squeue(new) == slurm.State("7_2", "TIMEOUT", "", 3, 1, "n1")


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("time.sleep(60)", "no first step within 0.2 s"),
        ("open(steps, 'a').write('{}\\n'); time.sleep(60)", "no further step within 0.3 s"),
    ],
)
def test_a_trainer_that_stalls_is_ended(tmp_path: Path, program: str, words: str) -> None:
    """3, the machine's fault, and what did not come; the records of an earlier start are no step of this one."""
    steps, ended = tmp_path / "steps.jsonl", tmp_path / "ended.json"
    steps.write_text("{}\n")
    command = [sys.executable, "-m", "leonardo.jobs.step", "run", str(tmp_path / "stop"), str(ended)]
    command += ["--watch", str(steps), "0.2" if "first" in words else "60", "0.3", "--"]
    trainer = [sys.executable, "-c", f"import time; steps = {str(steps)!r}; {program}"]
    done = subprocess.run([*command, *trainer], capture_output=True, text=True, timeout=30)
    assert (done.returncode, json.loads(ended.read_text())["stalled"]) == (3, words)
    assert f"job: {words}: the trainer is ended" in done.stderr
