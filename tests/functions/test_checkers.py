"""The worker process: it sees the package and nothing else, and its ends are told apart."""

import subprocess
import sys
from pathlib import Path

import pytest

from leonardo.errors import InfrastructureError, InputError
from leonardo.functions import checkers as module
from leonardo.functions.checkers import CheckerError, Checkers, CheckerTimeout


def test_the_package_is_asked_for_by_name_where_it_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LEONARDO_BFCL", str(tmp_path))
    with Checkers() as opened, pytest.raises(InputError, match="make bfcl"):
        opened.ask("rows", category="simple_python")


def test_the_package_is_pinned(checkers: Checkers) -> None:
    assert module.package_pins()["bfcl-eval"] == "2026.3.23"


def test_nothing_of_ours_imports_the_package() -> None:
    code = "import sys, leonardo.functions.check; print([name for name in sys.modules if 'bfcl_eval' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_worker_sees_the_packages_folder_only(checkers: Checkers) -> None:
    # numpy is in this environment, and the memory services would import it
    row = {
        "id": "memory_1", "category": "multi_turn_base", "initial_config": {}, "involved_classes": ["MemoryAPI_vector"],
    }  # fmt: skip
    with pytest.raises(CheckerError, match="No module named"):
        checkers.ask("execute", row=row, calls=[], episode="x")


def test_names_that_are_no_names_are_never_evaluated(checkers: Checkers) -> None:
    row = checkers.ask("rows", category="multi_turn_base")[0]
    for call in (
        {"name": "__import__('os').getpid", "arguments": {}},
        {"name": "ls", "arguments": {"a=print(1),b": 1}},
    ):
        with pytest.raises(CheckerError, match="no function"):
            checkers.ask("execute", row=row, calls=[call], episode="x", last=True)


def test_builtins_are_no_functions_of_a_row(checkers: Checkers) -> None:
    row = checkers.ask("rows", category="multi_turn_base")[0]
    with pytest.raises(CheckerError, match="no function"):
        checkers.ask("execute", row=row, calls=[{"name": "open", "arguments": {"file": "/etc/passwd"}}], episode="x")


def test_services_of_two_episodes_are_apart(checkers: Checkers) -> None:
    row = checkers.ask("rows", category="multi_turn_base")[0]
    ask = {"name": "pwd", "arguments": {}}
    (moved,) = checkers.ask(
        "execute", row=row, calls=[{"name": "cd", "arguments": {"folder": "document"}}], episode="a"
    )
    assert "document" in moved
    assert "document" in checkers.ask("execute", row=row, calls=[ask], episode="a", last=True)[0]
    assert "document" not in checkers.ask("execute", row=row, calls=[ask], episode="b", last=True)[0]
    assert "document" not in checkers.ask("execute", row=row, calls=[ask], episode="a", last=True)[0]


def test_a_call_that_does_not_end_is_a_timeout_and_the_next_is_answered(checkers: Checkers) -> None:
    with Checkers(timeout=0.01) as hasty:
        with pytest.raises(CheckerTimeout):
            hasty.ask("rows", category="live_multiple")
        assert hasty._process is None


def test_a_worker_that_dies_is_an_infrastructure_failure(checkers: Checkers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WORKER", Path("/nonexistent/worker.py"))
    with Checkers() as opened, pytest.raises(InfrastructureError, match="ended at rows"):
        opened.ask("rows", category="simple_python")


def test_no_scratch_folder_stays(checkers: Checkers) -> None:
    with Checkers() as opened:
        opened.ask("rows", category="live_parallel")
        scratch = opened._scratch
        assert scratch.is_dir()
    assert not scratch.exists()
