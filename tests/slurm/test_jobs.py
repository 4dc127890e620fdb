"""Jobs on a real Slurm: each end that a job can come to, and what is said of it."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from leonardo.cli import app
from leonardo.errors import InputError
from leonardo.evidence import read
from leonardo.jobs import slurm
from leonardo.jobs.collect import collect
from leonardo.jobs.folder import events, holder
from leonardo.jobs.follow import look
from leonardo.jobs.plan import JobPlan
from tests.slurm.conftest import ended, queue, running, wait_for

Count = Callable[..., JobPlan]


def counted(plan: JobPlan) -> dict:
    """What the counter kept."""
    return json.loads((plan.folder / "count.json").read_text())


def events_of(plan: JobPlan) -> list[str]:
    """What happened to the job, in words."""
    return [event.event for event in events(plan.folder)]


def until(seen: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait."""
    deadline = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def node_places() -> list[Path]:
    """Where each node has the scratch of jobs, seen from outside; not by way of a daemon's short-lived child."""
    daemons = {
        each.pid: each.info["ppid"] for each in psutil.process_iter(["name", "ppid"]) if each.info["name"] == "slurmd"
    }
    return [Path("/proc", str(pid), "root/tmp/node") for pid, parent in daemons.items() if parent not in daemons]


def test_submit_follow_collect(count: Count) -> None:
    """A job runs, is seen to, ends well, and says so in the ledger; its folder is then free."""
    plan = count(10)
    job = queue(plan)
    wait_for(job, running)
    assert f"job {job}: running on node" in look(plan.folder).line()
    (ran_on,) = (state.nodes for state in slurm.states(job))
    with pytest.raises(InputError, match="is running"):
        collect(plan.folder, plan.folder.parent / "ledger.jsonl")
    wait_for(job, ended)
    seen = look(plan.folder)
    assert seen.ended and "completed" in seen.line() and seen.last.event == "ended"
    assert seen.log is not None and "count 10" in seen.log.read_text()
    found = collect(plan.folder, plan.folder.parent / "ledger.jsonl")
    assert found["ok"] and found["figures"] == {
        "nodes": ran_on,
        "node_count": 1,
        "exit_code": 0,
        "state": "COMPLETED",
        "restarts": 0,
        "starts": 1,
        "steps": 0,
        "tasks": 1,
        "tasks_ended_well": 1,
    }
    assert holder(plan.folder) is None
    assert [entry.verdict for entry in read(plan.folder.parent / "ledger.jsonl")] == ["pass"]
    assert "pydantic==" in (plan.folder / "environment.txt").read_text()


def test_exit_code_of_the_trainer(count: Count) -> None:
    """A trainer that ends with 3 ends the job with 3, and the evidence says why."""
    plan = count(2, 3)
    (state,) = wait_for(queue(plan), ended)
    assert (state.name, state.exit_code) == ("FAILED", 3)
    found = collect(plan.folder, plan.folder.parent / "ledger.jsonl")
    assert not found["ok"]
    assert found["reason"] == "exit code 3; the log ends: the trainer has had enough"
    assert read(plan.folder.parent / "ledger.jsonl")[0].verdict == "fail"


def test_chain(count: Count) -> None:
    """Each waits for the one before it; after a failure the next never starts."""
    first, second, third, fourth = (count(3, *code, name=f"part{n}") for n, code in enumerate(([], [], [4], [])))
    jobs = [queue(first)]
    for plan in (second, third, fourth):
        jobs.append(queue(plan, jobs[-1]))
    assert f"after job {jobs[2]}: pending" in look(fourth.folder).line()
    for job, name in zip(jobs, ["COMPLETED", "COMPLETED", "FAILED", "CANCELLED"], strict=True):
        assert [state.name for state in wait_for(job, ended)] == [name]
    ends = [[event.time for event in events(plan.folder)] for plan in (first, second, third)]
    assert ends[0][-1] <= ends[1][0] and ends[1][-1] <= ends[2][0]
    assert not list(events(fourth.folder))
    assert look(fourth.folder).line() == f"job {jobs[3]}: cancelled (a job before it in the chain did not end well)"
    assert "before it in the chain" in collect(fourth.folder, fourth.folder.parent / "ledger.jsonl")["reason"]
    slurm.require_waitable(jobs[:2])
    for job, word in zip(jobs[2:], ("failed", "cancelled"), strict=True):
        with pytest.raises(InputError, match=rf"job {job} has ended \({word}\): what waits for it would never start"):
            slurm.require_waitable([job])


def test_array(make_plan: Callable[..., JobPlan]) -> None:
    """Each task of an array has its part; one that fails is counted, and the others stand."""
    program = "import sys; print('part', sys.argv[1]); sys.exit(sys.argv[1].startswith('2/'))"
    plan = make_plan(sys.executable, "-c", program, "{shard}", array=3, name="array")
    job = queue(plan)
    states = wait_for(job, lambda states: len(states) == 3 and ended(states))
    assert [state.exit_code for state in states] == [0, 1, 0]
    logs = "".join(path.read_text() for path in plan.folder.glob("slurm-*.log"))
    assert all(f"part {number}/3" in logs for number in (1, 2, 3))
    found = collect(plan.folder, plan.folder.parent / "ledger.jsonl")
    assert not found["ok"] and found["figures"]["tasks_ended_well"] == 2


def test_cancel(count: Count) -> None:
    """A cancelled job is cancelled, and nothing of it lives on."""
    plan = count(1000)
    job = queue(plan)
    until(lambda: (plan.folder / "count.json").exists())
    slurm.cancel(job)
    (state,) = wait_for(job, ended)
    assert (state.name, state.restarts) == ("CANCELLED", 0)
    assert "cancelled" in collect(plan.folder, plan.folder.parent / "ledger.jsonl")["reason"]
    until(
        lambda: not [entry for entry in psutil.process_iter(["cmdline"]) if str(plan.folder) in entry.info["cmdline"]]
    )


def test_what_has_ended_is_not_cancelled_and_what_never_was_is_not_waited_for(count: Count) -> None:
    """Each in one line."""
    plan = count(1)
    job = queue(plan)
    wait_for(job, ended)
    slurm.require_waitable([job])
    with pytest.raises(InputError, match="Slurm knows no job 99999"):
        slurm.require_waitable([job, "99999"])
    done = CliRunner().invoke(app, ["launch", "cancel", str(plan.folder)])
    assert done.exit_code == 0 and done.output == f"job {job}: it has ended (completed); nothing is done\n"


def test_cancel_while_nodes_are_checked(count: Count, tmp_path: Path) -> None:
    """That is no node that lacks something; its scratch is taken away."""
    slow = tmp_path / "python"
    slow.write_text(f"""#!/bin/bash
[[ "$*" != *leonardo.jobs.arrive* ]] || exec {sys.executable} -c '
import shutil, sys, time
from leonardo.jobs import arrive
shutil.disk_usage = lambda place: time.sleep(60)
sys.exit(arrive.main(sys.argv[3:]))' "$@"
exec {sys.executable} "$@"
""")
    slow.chmod(0o755)
    plan = replace(count(5), python=slow)
    job = queue(plan)
    wait_for(job, running)
    nodes = node_places()
    until(lambda: any((node / f"l{job}").exists() for node in nodes))
    slurm.cancel(job)
    (state,) = wait_for(job, ended)
    assert state.name == "CANCELLED"
    until(lambda: events_of(plan) == ["started", "told to stop: TERM", "ended"])
    until(lambda: not any((node / f"l{job}").exists() for node in nodes))


def test_a_ready_node_of_a_cancelled_job_is_tidied_by_the_next(count: Count, tmp_path: Path) -> None:
    """It is given no step to remove its scratch, while the other is still checked; the next job there does."""
    slow = tmp_path / "python"
    slow.write_text(f"""#!/bin/bash
{sys.executable} "$@" || exit
[[ "$*" = *leonardo.jobs.arrive* ]] || exit 0
touch {tmp_path}/ready$SLURM_PROCID
[ $SLURM_PROCID != 0 ] || exec sleep 60
""")
    slow.chmod(0o755)
    plan = count(5, name="cancelled")
    plan = replace(plan, python=slow, resources=replace(plan.resources, nodes=2))
    job = queue(plan)
    wait_for(job, running)
    until(lambda: all((tmp_path / f"ready{number}").exists() for number in (0, 1)))
    nodes = node_places()
    (nodes[1] / "l99999").mkdir()  # somebody's own
    slurm.cancel(job)
    wait_for(job, ended)
    until(lambda: events_of(plan)[-1] == "ended")
    assert any((node / f"l{job}").exists() for node in nodes)
    plan = count(1, name="next")
    wait_for(queue(replace(plan, resources=replace(plan.resources, nodes=2))), ended)
    assert [path.name for node in nodes for path in node.glob("l*")] == ["l99999"]
    assert f"l{job} was left by a job that has ended; removed" in next(plan.folder.glob("slurm-*.log")).read_text()


def test_a_running_job_is_seen_whatever_the_shell_narrows(count: Count, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no other job takes its scratch for a leftover, and none lets its folder go."""
    plan = count(1000)
    job = queue(plan)
    wait_for(job, running)
    narrow = {"PARTITION": "cpu", "STATES": "PENDING", "NAMES": "other", "USERS": "nobody", "ACCOUNT": "other"}
    for name, value in narrow.items():
        monkeypatch.setenv(f"SQUEUE_{name}", value)
    monkeypatch.setenv("LOGNAME", "nobody")
    assert job in slurm.alive() and slurm.queued(plan.folder / "job.sh") == [job]
    assert [state.name for state in slurm.states(job)] == ["RUNNING"]
    slurm.cancel(job)
    wait_for(job, ended)


def test_set_up_that_fails(count: Count) -> None:
    """What its lines set stays; the first that fails ends the job with 3 and is named."""
    lines = (
        "mark() { export MARK=$1$UNSET; }",
        "mark seen # as modules do",
        '[ "$MARK" = seen ]',
        '[ "$MARK" = other ]',
    )
    plan = count(5, set_up=lines)
    (state,) = wait_for(queue(plan), ended)
    assert (state.name, state.exit_code) == ("FAILED", 3)
    assert events_of(plan) == [f"failed: the site's set_up failed at: {lines[-1]}"]


def test_requeue_with_resume(count: Count) -> None:
    """USR1 makes the trainer save; the job is queued again and goes on from there."""
    plan = count(60)
    job = queue(plan)
    until(lambda: (plan.folder / "count.json").exists() and counted(plan)["count"] > 5)
    subprocess.run(["scancel", "--batch", "--signal=USR1", job], check=True)
    (state,) = wait_for(job, ended)
    assert (state.name, state.exit_code, state.restarts) == ("COMPLETED", 0, 1)
    kept = counted(plan)
    assert kept["count"] == 60 and len(kept["starts"]) == 2 and kept["starts"][1][0] > 5
    assert events_of(plan) == [
        "started",
        "told to stop: USR1",
        "queued again",
        "started",
        "ended",
    ]
    assert collect(plan.folder, plan.folder.parent / "ledger.jsonl")["figures"]["restarts"] == 1


def test_time_limit(count: Count) -> None:
    """Slurm itself sends USR1 before the limit; with no restart left the job ends as the trainer did."""
    plan = count(100_000, restarts=0, grace=60)
    plan = replace(plan, resources=replace(plan.resources, minutes=1))
    (state,) = wait_for(queue(plan), ended, 90)
    assert (state.name, state.exit_code) == ("FAILED", 143)
    reason = collect(plan.folder, plan.folder.parent / "ledger.jsonl")["reason"]
    assert reason.startswith("exit code 143; no restart is left of 0")


def test_node_failure(count: Count, place: Path) -> None:
    """A node that dies under a job: Slurm queues the job again, which goes on, on the node that is left."""
    plan = count(50)
    job = queue(plan)
    until(lambda: (plan.folder / "count.json").exists() and counted(plan)["count"] > 5)
    (_, _, node) = counted(plan)["starts"][0]
    (place / f"down-{node}").touch()
    try:
        daemon = next(
            entry for entry in psutil.process_iter(["cmdline"]) if entry.info["cmdline"] == ["slurmd", "-D", "-N", node]
        )
        for process in [daemon, *daemon.parent().children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        (state,) = wait_for(job, ended, 120)
        assert (state.name, state.exit_code) == ("COMPLETED", 0)
        starts = counted(plan)["starts"]
        assert [start[2] == node for start in starts] == [True, False] and starts[1][0] > 5
    finally:
        (place / f"down-{node}").unlink()


def test_node_that_lacks_something(count: Count) -> None:
    """What is missing is named, by the node, before the trainer starts."""
    plan = count(5, needs={"/nowhere/model/config.json": "Bring the model: make unbundle"})
    (state,) = wait_for(queue(plan), ended)
    assert (state.name, state.exit_code) == ("FAILED", 2)
    assert not (plan.folder / "count.json").exists()
    (log,) = plan.folder.glob("slurm-*.log")
    assert ": /nowhere/model/config.json is not there. Bring the model: make unbundle" in log.read_text()
