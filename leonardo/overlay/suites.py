"""Upstream's own tests on its tree with and without the stack: no test that passes without may fail with it."""

import io
import os
import signal
import subprocess
import tarfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from leonardo.errors import InfrastructureError, InputError
from leonardo.overlay.commits import build
from leonardo.overlay.stack import Stack
from leonardo.overlay.tree import Tree

TRAINER = "training/open-instruct"

SUITES = (
    "tests/test_apptainer_backend.py",
    "tests/test_environment_pool.py",
    "tests/test_environments.py",
    "tests/test_generic_sandbox.py",
    "open_instruct/environments/tools/tests/test_parsers.py",
    "open_instruct/test_data_loader_env_config.py",
    "open_instruct/test_grpo_fast.py",
    "open_instruct/test_swerl_sandbox.py",
    "open_instruct/test_vllm_utils.py",
)
"""Those that exercise what the patches touch and run without a GPU. Some of their tests need the network and fail on
both trees alike."""

TIME_LIMIT = 3600.0
"""Seconds for all of them on one tree: far more than they take on a machine that does nothing else."""

Outcomes = Mapping[str, str]
"""Test id -> ``passed``, ``failed`` or ``skipped``."""


@dataclass(frozen=True)
class Comparison:
    """Two runs of the same tests.

    Attributes:
        broken: tests that passed without the stack and did not with it; sorted.
        repaired: the other way round; sorted.
        passed, failed, skipped: counts with the stack.
        before: how many passed without it.
    """

    broken: tuple[str, ...]
    repaired: tuple[str, ...]
    passed: int
    failed: int
    skipped: int
    before: int

    @property
    def ok(self) -> bool:
        """Whether nothing broke; where nothing passed without the stack, nothing is known, and that is not ok."""
        return not self.broken and self.before > 0


def compare(without: Outcomes, patched: Outcomes) -> Comparison:
    """Compare by test id. A test that was not run with the stack, or only skipped, counts as broken if it passed."""
    counts = {outcome: sum(one == outcome for one in patched.values()) for outcome in ("passed", "failed", "skipped")}
    passed_without = {test for test, outcome in without.items() if outcome == "passed"}
    passed_patched = {test for test, outcome in patched.items() if outcome == "passed"}
    return Comparison(
        broken=tuple(sorted(passed_without - passed_patched)),
        repaired=tuple(sorted((passed_patched - passed_without) & without.keys())),
        before=len(passed_without),
        **counts,
    )


def read_outcomes(report: Path) -> dict[str, str]:
    """The outcomes in a JUnit file. Raises InputError where it is none."""
    try:
        root = ElementTree.parse(report).getroot()  # pytest's own, written a moment ago
    except (OSError, ElementTree.ParseError) as error:
        raise InputError(f"{report} is no JUnit file ({error})", "See what pytest printed") from error
    outcomes: dict[str, str] = {}
    for case in root.iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        # a test whose teardown fails is listed twice
        outcomes[name] = "failed" if "failed" in (outcome, outcomes.get(name)) else outcome
    return outcomes


def write_trees(tree: Tree, stack: Stack, folder: Path) -> tuple[Path, Path]:
    """Write upstream's trainer without and with the stack below ``folder``. Touches no file of the checkout."""
    commits = build(tree, stack.lock.commit, {name: stack.texts[name] for name in stack.names})
    places = []
    for name, commit in (("without", stack.lock.commit), ("patched", commits[-1].id)):
        place = folder / name
        place.mkdir(parents=True)
        archive = tree.git_bytes("archive", "--format=tar", commit, "--", TRAINER, f":(exclude){TRAINER}/docs")
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(place, filter="data")
        places.append(place / TRAINER)
    return places[0], places[1]


def run_suites(
    python: Path, place: Path, report: Path, suites: Sequence[str] = SUITES, limit: float = TIME_LIMIT
) -> dict[str, str]:
    """Run test files of the tree at ``place``, in one process. Returns the outcomes.

    ``report`` is the JUnit file to write; what pytest prints goes beside it. Nothing that the tests start outlives them
    where a pid namespace can be had (root); elsewhere their session is killed.

    Raises:
        InfrastructureError: they did not end in time, or pytest itself died: nothing is known then.
    """
    contained = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"] if os.geteuid() == 0 else []
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    command = [*contained, str(python), "-m", "pytest", *options, *suites]
    project = Path(__file__).parents[2]
    environment = os.environ | {
        "PYTHONPATH": f"{place}{os.pathsep}{project}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    with TemporaryDirectory(prefix="r") as ray, report.with_suffix(".log").open("wb") as log:
        environment["RAY_TMPDIR"] = ray  # a short path: Ray puts sockets into it
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        process = subprocess.Popen(command, cwd=place, env=environment, start_new_session=True, **streams)
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(limit)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if not report.exists():
        raise InfrastructureError(
            f"upstream's tests, {report.stem}, gave no result in {limit:.0f} s (code {process.returncode})",
            f"See {report.with_suffix('.log')}",
        )
    return read_outcomes(report)
