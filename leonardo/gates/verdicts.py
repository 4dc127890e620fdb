"""Verdicts on tasks: which rows cannot teach anything, and what says so.

A verifier must be able to fail and to pass. That it can fail is seen on the initial state, that it can pass after the
reference solution. Where a row has none, its text is held against the instruction and against a machine without a
network. Verdicts stand in a file of the asset store, one JSON object a line, and selections for training leave the rows
out (:func:`selectable`).
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from leonardo.errors import FailureClass, InputError
from leonardo.files import write_atomic
from leonardo.gates.instructions import names
from leonardo.gates.literals import VerifierText, read_verifier, remote_hosts
from leonardo.gates.trees import Tree
from leonardo.rollout.verification import Status, Verdict
from leonardo.tasks.task import Task

FILE = "verdicts.jsonl"
"""Its name in an asset store."""

_NO_NETWORK = re.compile(
    r"Temporary failure in name resolution|Name or service not known|Network is unreachable|No address associated|"
    r"Could not resolve host|Failed to resolve|nodename nor servname"
)
_FETCHING = re.compile(r"\b(?:download|fetch|clone|curl|wget|pull)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.;!?])\s+|\n")
_MODULE = re.compile(r"No module named '([\w.]+)'")
_OWN_PLACES = ("/tests/", "/logs/", "/tmp/", "/dev/", "/proc/", "/sys/", "/var/tmp/")


@dataclass(frozen=True)
class TaskVerdict:
    """What was found about one row.

    Attributes:
        task_id, task_digest: the row.
        prepared: digest of the prepared state that it was found on.
        failure: why the row is of no use; ``None`` where nothing was found against it.
        evidence: what says so, one line each.
    """

    task_id: str
    task_digest: str
    prepared: str
    failure: FailureClass | None = None
    evidence: tuple[str, ...] = ()


def judge(
    task: Task, prepared: str, null: Verdict, reference: Verdict | None, tree: Tree, leaks: Sequence[str] = ()
) -> TaskVerdict:
    """The verdict on a task, of what was seen when it was run.

    Args:
        prepared: digest of its prepared state.
        null: what the verifier said of the initial state.
        reference: what it said after the reference solution, ``None`` where the task has none.
        tree: the files of the initial state.
        leaks: what the audit found in them.
    """
    failure, evidence = _judged(task, null, reference, tree, leaks)
    return TaskVerdict(task.id, task.digest, prepared, failure, tuple(evidence))


def selectable(
    tasks: Iterable[Task], verdicts: Mapping[str, TaskVerdict], asked_for: Collection[FailureClass] = ()
) -> list[Task]:
    """The tasks that nothing was found against, in their order; those with a failure that was asked for, too."""
    found = ((task, verdicts.get(task.digest)) for task in tasks)
    return [task for task, verdict in found if verdict is None or verdict.failure in (None, *asked_for)]


def read_verdicts(path: Path) -> dict[str, TaskVerdict]:
    """The verdicts in a file, by task digest; none where there is no file.

    Raises:
        InputError: it holds something else; names the line.
    """
    found = {}
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}
    for number, line in enumerate(lines, 1):
        try:
            verdict = _from_json(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{path} line {number} is no verdict ({error})", "Remove the line, and audit again"
            ) from error
        found[verdict.task_digest] = verdict
    return found


def update_verdicts(path: Path, verdicts: Iterable[TaskVerdict]) -> None:
    """Put ``verdicts`` into the file, in the place of older ones on the same tasks."""
    known = read_verdicts(path)
    known |= {verdict.task_digest: verdict for verdict in verdicts}
    ordered = sorted(known.values(), key=lambda verdict: (verdict.task_id, verdict.task_digest))
    write_atomic(path, "".join(json.dumps(asdict(verdict), sort_keys=True) + "\n" for verdict in ordered))


def _from_json(values: dict[str, Any]) -> TaskVerdict:
    failure = values["failure"]
    return TaskVerdict(
        **values | {"failure": FailureClass(failure) if failure else None, "evidence": tuple(values["evidence"])}
    )


def _judged(
    task: Task, null: Verdict, reference: Verdict | None, tree: Tree, leaks: Sequence[str]
) -> tuple[FailureClass | None, list[str]]:
    if null.status is Status.PASSED:
        return FailureClass.VERIFIER_ALREADY_PASSES, [f"passes where nothing was done: {_last_line(null.output)}"]
    if leaks:
        return FailureClass.LEAKS, list(leaks)
    if reference is not None and reference.status is Status.PASSED:
        return None, []
    said = _said(task)
    if evidence := list(_network(task, said, null, reference)):
        return FailureClass.NEEDS_NETWORK, evidence
    if evidence := list(_contradictions(task, said, tree)):
        return FailureClass.CONTRADICTS, evidence
    if null.status is Status.BROKEN and (evidence := _broken(task, null, reference)):
        return FailureClass.VERIFIER_BROKEN, [evidence]
    if reference is not None:
        word = "cannot run" if reference.status is Status.BROKEN else "says no"
        return FailureClass.REFERENCE_FAILS, [f"after the reference solution it {word}: {_last_line(reference.output)}"]
    return None, []


def _said(task: Task) -> VerifierText:
    """What the verifier's files say, the frame around them left out."""
    said = VerifierText()
    for name, content in task.tests.items():
        if name == "test.sh" and len(task.tests) > 1:
            continue
        part = read_verifier(content.decode(errors="replace"))
        said.required |= part.required
        said.ports |= part.ports
        said.hosts |= part.hosts
    return said


def _network(task: Task, said: VerifierText, null: Verdict, reference: Verdict | None) -> Iterator[str]:
    for host in sorted(said.hosts):
        yield f"the verifier calls {host}"
    for sentence in _SENTENCE.split(task.instruction):
        if _FETCHING.search(sentence):
            for host in remote_hosts(sentence):
                yield f"the instruction has the agent fetch from {host}"
    for name, verdict in (("initial state", null), ("reference solution", reference)):
        if verdict is not None and (match := _NO_NETWORK.search(verdict.output)):
            yield f"on the {name}: {match.group(0)}"


def _contradictions(task: Task, said: VerifierText, tree: Tree) -> Iterator[str]:
    for path in sorted(said.required):
        name = path.rpartition("/")[2]
        if path in tree or path.startswith(_OWN_PLACES) or name in task.instruction or names(task.instruction, path):
            continue
        yield f"the verifier wants {path}, which the instruction does not name"
    for port in sorted(said.ports):
        if not re.search(rf"(?<!\d){port}(?!\d)", task.instruction + task.definition):
            yield f"the verifier connects to port {port}, which the instruction does not name"


def _broken(task: Task, null: Verdict, reference: Verdict | None) -> str:
    """Why a verifier that did not run is of no use; ``""`` where it may only miss what the agent is to make."""
    if reference is None and (match := _MODULE.search(null.output)):
        module = match.group(1).split(".")[0]
        if re.search(rf"\b{re.escape(module)}\b", task.instruction):
            return ""
    return f"cannot run: {_last_line(null.output)}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"
