import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from leonardo.errors import InfrastructureError, InputError
from leonardo.sandbox.drivers import open_driver
from tests.gates.test_environment import ROW, write_rows
from tests.processes import running

ROOT = Path(__file__).parents[1]


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "leonardo.cli", *map(str, arguments)]


def run(*arguments: str | Path, **settings: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, cwd=ROOT, timeout=60, **settings)


@pytest.mark.parametrize("name", ["demo", "gates", "doctor"])
def test_every_command_has_help(name: str) -> None:
    result = run(name, "--help")
    assert result.returncode == 0
    assert "Usage" in result.stdout


def test_a_folder_that_cannot_be_made_is_one_line_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for arguments in (("doctor", "--out", tmp_path / "file" / "out"), ("demo", "--runs", tmp_path / "file" / "runs")):
        result = run(*arguments)
        assert result.returncode in (
            InputError.exit_code,
            InfrastructureError.exit_code,
        )
        assert len(result.stderr.splitlines()) == 1
        assert result.stderr.startswith("leonardo: ")


@pytest.mark.parametrize("command", ["demo", "transfer", "stage run smoke"])
def test_a_seed_that_no_generator_takes_is_one_line(command: str) -> None:
    result = run(*command.split(), "--seed", str(2**32))
    assert result.returncode == 2 and "Invalid value for '--seed'" in result.stderr


def test_one_line_whatever_a_library_says(tmp_path: Path) -> None:
    (tmp_path / "no.tar").write_text("not a tar")
    site = tmp_path / "site.yaml"
    site.write_text(
        "name: test\nbases: {'tiny:1': {registry: false, substitute: {kind: archive, path: no.tar, reason: a test}}}\n"
    )
    environment = os.environ | {"LEONARDO_CACHE": str(tmp_path / "cache")}
    rows = write_rows(tmp_path / "rows.jsonl", ROW)
    result = run("gates", rows, "--site", site, "--out", tmp_path / "out", env=environment)
    if result.returncode == InfrastructureError.exit_code:
        pytest.skip(result.stderr)
    assert result.returncode == InputError.exit_code
    assert len(result.stderr.splitlines()) == 1
    assert "no root file system archive" in result.stderr


def test_a_current_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    script = f"cd {tmp_path} && rmdir {tmp_path} && exec {sys.executable} -P -m leonardo.cli doctor"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == InputError.exit_code
    assert result.stderr.startswith("leonardo: the current folder cannot be used")


def test_few_open_files_are_made_do_with(tmp_path: Path) -> None:
    """The sandboxes' own limit may not be above the caller's."""
    out = tmp_path / "out"
    script = f"ulimit -n 64; exec {sys.executable} -m leonardo.cli doctor --out {out}"
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT)
    probes, _, drivers = result.stdout.partition("Drivers of sandboxes")
    assert "limits: 64 open files" in probes
    assert "limit" not in drivers and "yes" in drivers
    assert result.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_one_line_with_nothing_left(tmp_path: Path, site: object, number: signal.Signals) -> None:
    """While a set-up runs that would take long."""
    try:
        open_driver().close()
    except InfrastructureError as error:
        pytest.skip(str(error))
    post = "Bootstrap: docker\nFrom: tiny:1\n\n%post\n    sleep 1234.5 & sleep 1234.5\n"
    rows = write_rows(tmp_path / "rows.jsonl", ROW | {"container_def": post})
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    arguments = command("gates", rows, "--out", tmp_path / "out", "--site", tmp_path / "site.yaml")
    environment = os.environ | {"TMPDIR": str(temporary)}
    with running(arguments, cwd=ROOT, stderr=subprocess.PIPE, env=environment) as process:
        deadline = time.monotonic() + 60
        while not (below := sleepers(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(number)
        _, complaint = process.communicate(timeout=20)
    assert below
    assert process.returncode == 128 + number
    assert complaint == "leonardo: interrupted; the same command goes on from here\n"
    assert not any(Path(f"/proc/{sleeper}").exists() for sleeper in below)
    assert not list(temporary.iterdir())
    assert not (tmp_path / "out" / "gates.json").exists()


def sleepers(process: int) -> list[int]:
    """The set-up's processes below ``process``."""
    found = []
    for child in Path(f"/proc/{process}/task/{process}/children").read_text().split():
        try:
            if b"1234.5" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(int(child))
            found += sleepers(int(child))
        except OSError:
            continue
    return found


def test_an_option_of_several_commands_is_said_once() -> None:
    sources = [path.read_text() for path in (ROOT / "leonardo").rglob("*.py")]
    said = Counter(
        " ".join(option.split())
        for text in sources
        for option in re.findall(r'typer\.(?:Option|Argument)\([^)]*?help="[^"]*"', text)
    )
    assert len(said) > 50
    assert not [words for words, count in said.items() if count > 1]  # leonardo/options.py has the shared ones


def test_git_is_needed_only_where_it_is_used(tmp_path: Path) -> None:
    """A compute node may have none: what a job runs does without, and what needs it says so in a line."""
    without = os.environ | {"PATH": str(tmp_path)}
    rendered = run("launch", "render", "smoke", "--site", "leonardo", env=without)
    assert rendered.returncode == 0 and "#SBATCH" in rendered.stdout
    modules = "leonardo.stages.climb, leonardo.stages.pins as pins, leonardo.engine.upstream.engine"
    code = f"import {modules}; assert pins.overlay() == ''"
    imported = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=without, capture_output=True, text=True)
    assert imported.returncode == 0, imported.stderr
    refused = run("patches", "check", env=without)
    assert refused.returncode == InputError.exit_code
    assert refused.stderr.startswith("leonardo: git is not in PATH") and len(refused.stderr.splitlines()) == 1
