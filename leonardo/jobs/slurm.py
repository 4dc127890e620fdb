"""The one place where Slurm's commands are called."""

import json
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import Any

from pydantic.dataclasses import dataclass

from leonardo.errors import InfrastructureError, InputError
from leonardo.jobs.folder import LOCK

_TIMEOUT = 60.0
_LONGEST = 600  # characters of Slurm's words in a line

_FILTERS = ("SQUEUE_", "SACCT_", "SCONTROL_", "SCANCEL_")
"""Variables with which a person's shell, and a job that was submitted from it, narrows what these commands see."""

ENDED = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED")
) | {"REVOKED", "TIMEOUT"}

_UNKNOWN = "Invalid job id"
"""What the controller says of a job that it does not know; any other failure is none of its answers."""

_LATER = "Ask again where Slurm's commands work and its controller answers; nothing was written"


@dataclass(frozen=True)
class State:
    """What Slurm says of a job, or of a task of an array.

    Attributes:
        job: id; ``<array>_<task>`` for a task.
        name: Slurm's word: PENDING, RUNNING, COMPLETED, FAILED ...
        reason: why it waits or how it came to its end; "" or None.
        exit_code: of the script; None while it is not known.
        restarts: how often it was queued again.
        nodes: where it runs.
        after: jobs that it waits for.
    """

    job: str
    name: str
    reason: str = ""
    exit_code: int | None = None
    restarts: int = 0
    nodes: str = ""
    after: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether it has come to an end."""
        return self.name in ENDED

    @property
    def never_began(self) -> str:
        """Why it was cancelled before it could begin, in words; "" where it was not."""
        shut_out = self.name == "CANCELLED" and "Dependency" in self.reason
        return "a job before it in the chain did not end well" if shut_out else ""


def available() -> bool:
    """Whether Slurm's commands are there."""
    return shutil.which("sbatch") is not None


def test_only(script: Path) -> str:
    """What the scheduler has against the script; "" if nothing."""
    done = _call(["sbatch", "--test-only", str(script)], check=False)
    if done.returncode == 0:
        return ""
    return _in_a_line(done.stderr) or f"sbatch --test-only ended with {done.returncode}"


def submit(script: Path, *, after: Sequence[str] = (), hold: bool = False) -> str:
    """Queue a script; it starts when the jobs ``after`` have ended well. Returns the job's id.

    Raises:
        InputError: the scheduler refuses it; says why.
    """
    options = ["--parsable"]
    if after:
        options.append(f"--dependency=afterok:{':'.join(after)}")
    if hold:
        options.append("--hold")
    done = _call(["sbatch", *options, str(script)], check=False)
    if done.returncode != 0:
        raise InputError(f"Slurm refuses {script}: {_in_a_line(done.stderr)}", "leonardo launch check says more")
    return done.stdout.strip().partition(";")[0]


def run(options: Sequence[str], command: Sequence[str]) -> int:
    """Run a command in a job of its own and wait for it; its output comes here. Returns its exit code."""
    try:
        return subprocess.run(["srun", *options, *command], stdin=subprocess.DEVNULL).returncode
    except FileNotFoundError as error:
        raise InputError("srun is not here", "Work on a login node of the cluster") from error


def release(job: str) -> None:
    """Let a job that was queued with ``hold`` start."""
    _call(["scontrol", "release", job])


def cancel(job: str) -> None:
    """End a job, or take it from the queue. It ending meanwhile is fine."""
    _call(["scancel", job], check=False)


def states(job: str) -> list[State]:
    """A job's state, or those of an array's tasks; from the accounting where the controller has forgotten it.

    Returns an empty list where the controller answered and neither knows it.

    Raises:
        InfrastructureError: Slurm cannot be asked, which says nothing of the job.
    """
    if shutil.which("squeue") is None:
        raise InfrastructureError(f"job {job}: squeue is not here", _LATER)
    done = _squeue("--json", "--states=all", f"--jobs={job}", check=False)
    if done.returncode == 0:
        found = _listed(done.stdout)
        wanted = [state for state in found if state.job.partition("_")[0] == job or state.job == job]
        if wanted:
            return sorted(wanted, key=lambda state: state.job)
    accounted = _accounted(job)
    if not accounted and done.returncode != 0 and _UNKNOWN not in done.stderr:
        raise InfrastructureError(f"job {job}: Slurm cannot be asked ({_in_a_line(done.stderr)})", _LATER)
    return accounted


def queued(script: Path) -> list[str]:
    """Ids of this user's queued and running jobs that were submitted with ``script``.

    Raises:
        InfrastructureError: Slurm cannot be asked.
    """
    if shutil.which("squeue") is None:
        raise InfrastructureError(
            f"{script}: squeue, which knows whether it was queued, is not here",
            f"Ask on a login node; or, where you know that it was not, let its folder go: rm {script.parent / LOCK}",
        )
    done = _squeue("--noheader", f"--user={os.getuid()}", "--format=%i|%o")
    pairs = (line.partition("|") for line in done.stdout.splitlines())
    # a part of an array is <job>_<task>, one of a job of several kinds of nodes <job>+<part>
    return sorted({re.split(r"[_+]", job.strip())[0] for job, _, command in pairs if command.strip() == str(script)})


def alive() -> set[str]:
    """Ids of this user's jobs that wait, run or are ending, as their scripts know them: each task of an array its own.

    Raises:
        InputError, InfrastructureError: Slurm cannot be asked.
    """
    done = _squeue("--noheader", f"--user={os.getuid()}", "--format=%A")
    return set(done.stdout.split())


def require_waitable(jobs: Sequence[str]) -> None:
    """Jobs that another is to wait for may end well yet, or did: Slurm itself takes any number.

    Raises:
        InputError: one is no id, neither the controller nor the accounting knows it, or it has ended badly.
    """
    for job in jobs:
        if not re.fullmatch(r"\d+([_+]\d+)?", job, re.ASCII):
            raise InputError(f"{job!r} is no job's id", "Give the number that submit names")
        if not available():
            continue
        known = states(job.partition("+")[0])
        if not known:
            raise InputError(f"Slurm knows no job {job}", "Give the id of one that waits, runs or has just ended")
        if badly := sorted({state.name.lower() for state in known if state.ended and state.name != "COMPLETED"}):
            raise InputError(
                f"job {job} has ended ({', '.join(badly)}): what waits for it would never start",
                "Submit that one again first, or leave it out",
            )


def accounts() -> set[str] | None:
    """The accounts that this user may charge, in lower case; None where Slurm keeps none."""
    if shutil.which("sacctmgr") is None:
        return None
    command = ["sacctmgr", "-nP", "show", "assoc", "format=account", "where", f"user={_user()}"]
    done = _call(command, check=False)
    if done.returncode != 0:
        return None
    return {line.strip().lower() for line in done.stdout.splitlines() if line.strip()} or None


def configuration() -> dict[str, str]:
    """Slurm's settings."""
    done = _call(["scontrol", "show", "config"])
    pairs = (line.partition("=") for line in done.stdout.splitlines() if "=" in line)
    return {name.strip(): value.strip() for name, _, value in pairs}


def partitions() -> dict[str, dict[str, str]]:
    """Partitions by name, with the scheduler's own words for each."""
    done = _call(["scontrol", "show", "partition", "--oneliner"])
    found = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in done.stdout.splitlines() if line]
    return {entry["PartitionName"]: entry for entry in found if "PartitionName" in entry}


def _user() -> str:
    """The account's name, whatever LOGNAME says."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _squeue(*options: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    """What the queue has, hidden partitions included."""
    return _call(["squeue", "--all", *options], check)


def _listed(text: str) -> list[State]:
    try:
        jobs = json.loads(text)["jobs"]
        if not isinstance(jobs, list):
            raise TypeError("jobs is no list")
        return [_from_squeue(entry) for entry in jobs]
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InfrastructureError("squeue --json gave no list of jobs", _LATER) from error


def _from_squeue(entry: dict[str, Any]) -> State:
    state = entry["job_state"]
    name = state[0] if isinstance(state, list) else state  # a list since Slurm 23.11
    array, task = _number(entry.get("array_job_id")), _number(entry.get("array_task_id"))
    job = f"{array}_{task}" if array and task is not None else str(array or int(entry["job_id"]))
    status = entry.get("exit_code")
    raw = _number(status.get("return_code")) if isinstance(status, dict) else _number(status)
    code = raw if isinstance(status, dict) or raw is None else raw >> 8 if raw > 255 else raw and 128 + (raw & 127)
    return State(
        job=job,
        name=name,
        reason="" if entry.get("state_reason") in (None, "None") else str(entry["state_reason"]),
        exit_code=code if name in ENDED else None,
        restarts=_number(entry.get("restart_cnt")) or 0,
        nodes=entry.get("nodes") or "",
        after=tuple(dict.fromkeys(re.findall(r":(\d+)", entry.get("dependency") or ""))),
    )


def _number(value: Any) -> int | None:
    """Slurm writes a number, or since 23.02 an object that says whether it is set."""
    if isinstance(value, dict):
        return int(value["number"]) if value.get("set") else None
    return int(value) if value is not None else None


def _accounted(job: str) -> list[State]:
    if shutil.which("sacct") is None:
        return []
    columns = "JobID,State,Reason,ExitCode,NodeList"
    done = _call(["sacct", "-nXP", f"--jobs={job}", f"--format={columns}"], check=False)
    if done.returncode != 0:
        return []
    found = []
    for line in done.stdout.splitlines():
        try:
            name, state, reason, code, nodes = line.split("|")
            number, _, number_of_signal = code.partition(":")
            ended = int(number) or (128 + int(number_of_signal) if int(number_of_signal or 0) else 0)
        except ValueError as error:
            raise InfrastructureError(f"sacct gave a line that is none of its form: {line[:80]}", _LATER) from error
        found.append(State(name, state.partition(" ")[0], "" if reason == "None" else reason, ended, nodes=nodes))
    return found


def _call(command: list[str], check: bool = True) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_FILTERS)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT, stdin=subprocess.DEVNULL, env=environment
        )
    except FileNotFoundError as error:
        raise InputError(f"{command[0]} is not here", "Work on a login node of the cluster") from error
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(f"{command[0]} did not answer within {_TIMEOUT:.0f} s", "Try again later") from error
    if check and done.returncode != 0:
        raise InfrastructureError(f"{' '.join(command)}: {_in_a_line(done.stderr)}", "Is the scheduler up?")
    return done


def _in_a_line(text: str) -> str:
    """All that a command of Slurm's said, without its name before each line and without repetition."""
    lines = [re.sub(r"^(\w+: )?(error: |fatal: )?", "", line.strip()).rstrip(".") for line in text.splitlines()]
    whole = "; ".join(dict.fromkeys(line for line in lines if line))
    return shorten(whole, _LONGEST, placeholder=" …")
