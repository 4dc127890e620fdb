"""What a state is: its files, environment, users and packages, and what the verifier says of it."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from leonardo.errors import InfrastructureError
from leonardo.gates.imports import imported_modules, missing_modules
from leonardo.gates.trees import Tree, read_tree
from leonardo.rollout.verification import Verdict, prepare, run_script, verify
from leonardo.sandbox.backend import SandboxBackend
from leonardo.tasks.task import Task

SOLUTION_TIMEOUT = 600.0

_USER_FILES = ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow")
_DISTRIBUTION = re.compile(r".*/([^/]+)-([^/-]+)\.dist-info")


@dataclass(frozen=True)
class Observation:
    """What was seen of one state.

    Attributes:
        tree: its files.
        environment: what a command in a sandbox sees.
        users: file and name -> fields, of the user database.
        packages: name -> version, of the distribution and of Python.
        missing: modules that the verifier cannot do without and that are not there.
        verdicts: ``initial``, and where the task has them ``test_initial_state`` and ``reference``.
    """

    tree: Tree
    environment: Mapping[str, str]
    users: Mapping[str, str]
    packages: Mapping[str, str]
    missing: list[str]
    verdicts: Mapping[str, Verdict]


def observe(task: Task, backend: SandboxBackend) -> Observation:
    """Look at the state that ``backend`` starts from."""
    backend.start()
    tree = read_tree(listing_of(backend))
    environment = backend.run_command("env -0").stdout
    users = {path: _text(backend, path) for path in _USER_FILES}
    status = _text(backend, "/var/lib/dpkg/status")
    prepare(backend, task)
    missing = missing_modules(backend, imported_modules(task))
    verdicts = {"initial": verify(backend, task)}
    if task.initial_tests:
        backend.start()
        prepare(backend, task)
        verdicts["test_initial_state"] = verify(backend, replace(task, tests=task.initial_tests))
    if task.reference_solution is not None:
        backend.start()
        prepare(backend, task)
        exit_code, output = run_script(backend, task.reference_solution, SOLUTION_TIMEOUT)
        verdict = verify(backend, task)
        failed = f"the solution ended with exit code {exit_code}: {output}" if exit_code else ""
        verdicts["reference"] = replace(verdict, output=failed or verdict.output)
    return Observation(
        tree=tree,
        environment=dict(entry.partition("=")[::2] for entry in environment.split("\0") if "=" in entry),
        users=_users(users),
        packages=_packages(status) | _distributions(tree),
        missing=missing,
        verdicts=verdicts,
    )


def listing_of(backend: SandboxBackend) -> str:
    """The file tree of a sandbox that was started. Raises InfrastructureError where its driver cannot list it."""
    listing = getattr(backend, "listing", None)
    if listing is None:
        raise InfrastructureError("this driver's sandboxes cannot list their file tree", "Use another driver")
    return listing()


def reader(backend: SandboxBackend) -> Callable[[str], bytes]:
    """Reads files of a sandbox."""

    def read(path: str) -> bytes:
        content = backend.read_file(path, binary=True)
        return content if isinstance(content, bytes) else content.encode()

    return read


def _text(backend: SandboxBackend, path: str) -> str:
    try:
        content = backend.read_file(path)
    except OSError:
        return ""
    return content if isinstance(content, str) else content.decode(errors="replace")


def _users(files: Mapping[str, str]) -> dict[str, str]:
    """File and name -> fields; of shadow files without the day of the last change."""
    found = {}
    for path, text in files.items():
        for line in text.splitlines():
            name, *fields = line.split(":")
            if path.endswith("/shadow"):
                del fields[1:2]
            found[f"{PurePosixPath(path).name} {name}"] = ":".join(fields)
    return found


def _packages(status: str) -> dict[str, str]:
    found = {}
    for paragraph in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line[1:])
        if "installed" in fields.get("Status", "").split():
            found[fields.get("Package", "")] = fields.get("Version", "")
    return found


def _distributions(tree: Tree) -> dict[str, str]:
    """Python's: a folder names each and its version."""
    matches = (_DISTRIBUTION.fullmatch(path) for path, entry in tree.items() if entry.kind == "folder")
    return {f"{match.group(1)} (Python)": match.group(2) for match in matches if match}
